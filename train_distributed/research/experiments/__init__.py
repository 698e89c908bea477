"""Sweeps over methods, promises, partitions and seeds; their figures and tables."""
