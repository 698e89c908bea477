"""Integers in, one sum out: protocols of secure summation, and runs of them in one process."""

from train_distributed.secure_sum.simulate import SumResult, simulate_sum

__all__ = ["SumResult", "simulate_sum"]
