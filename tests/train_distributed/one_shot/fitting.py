"""Weights that a method makes of an unscaled sum, in one call."""

from typing import Any

from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.statistic import NoisedSum

METHODS_OF_CLASSES = [name for name, entry in METHODS.items() if entry.classes]


def fitted(method: Method, total: Tensor, rows: int, noise_std: float) -> Tensor:
    """(d, K)."""
    return method.fit(NoisedSum(total, rows, noise_std)).weights


def made(name: str, transform: PublicTransform, num_classes: int, options: dict[str, Any]) -> Any:
    """A method whose statistic has the fields of its own kind."""
    return build_method(name, transform, num_classes, options)
