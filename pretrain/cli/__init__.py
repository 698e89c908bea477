"""Shared parts of all commands: parsing, errors, output directories, provenance."""
