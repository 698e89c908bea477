"""Choosing a protection: what leaks, what it costs, which parameter suffices."""
