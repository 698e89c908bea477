"""Tests of the claims: rivals, attacks, experiments; only commands import it."""
