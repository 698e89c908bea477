"""Neighbours through whole commands: one record is replaced, and everything else is compared."""
