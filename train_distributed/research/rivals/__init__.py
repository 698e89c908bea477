"""Learners to compare with; the same arguments and reports as our own methods."""
