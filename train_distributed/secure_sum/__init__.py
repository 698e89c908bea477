"""Integers in, one sum out: protocols of secure summation, and runs of them in one process."""

from typing import TYPE_CHECKING

from pretrain.public import public_names

if TYPE_CHECKING:
    from train_distributed.secure_sum.simulate import SumResult, simulate_sum

__all__ = ["SumResult", "simulate_sum"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = public_names(__name__, dict.fromkeys(__all__, "simulate"))
