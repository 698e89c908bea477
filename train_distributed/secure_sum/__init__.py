"""Integers in, one sum out: protocols of secure summation, and runs of them in one process."""

from train_distributed.secure_sum.simulate import simulate_sum
from train_distributed.secure_sum.simulate_shares import SumResult

__all__ = ["SumResult", "simulate_sum"]
