"""Crash-safe storage on SQLite: named claims and blobs, written once, in one chained log."""
