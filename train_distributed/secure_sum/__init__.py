"""Integers in, one sum out: fixed point, discrete noise, and two secure summation protocols."""

from train_distributed.secure_sum.discrete_noise import NoiseSampler, add_noise, discrete_gaussian
from train_distributed.secure_sum.fixed_point import FixedPoint, towards_zero
from train_distributed.secure_sum.integer_privacy import IntegerRelease, default_step, plan
from train_distributed.secure_sum.simulate import SumResult, simulate_sum

__all__ = [
    "FixedPoint",
    "IntegerRelease",
    "NoiseSampler",
    "SumResult",
    "add_noise",
    "default_step",
    "discrete_gaussian",
    "plan",
    "simulate_sum",
    "towards_zero",
]
