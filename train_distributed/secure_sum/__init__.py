"""Integers in, one sum out: protocols of secure summation."""
