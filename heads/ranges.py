"""Scales that floating point carries: where constants overflow or underflow, nothing holds."""

import math
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from heads.head import Head

LEAST, LARGEST = 1e-60, 1e60  # of a constant in float64: products of four are still normal numbers
NARROW_LEAST, NARROW_LARGEST = 1e-12, 1e15  # of a length in float32, so that its square is
NARROW_SMOOTHNESS = 1e24  # of β in float32: a step of 1/β is far above the smallest number


def require_scale(name: str, value: float) -> None:
    """Refuses a constant that is not positive and finite, or whose powers are not.

    Raises:
        ValueError: naming the constant, its range and its value.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value}")
    if not LEAST <= value <= LARGEST:
        raise ValueError(f"{name} must lie in [{LEAST}, {LARGEST}], got {value}")


def check_precision(head: "Head", dtype: torch.dtype) -> None:
    """Refuses a head whose constants rows of this type cannot carry.

    Float64 carries all that a head may have.

    Args:
        head: c, R, Λ, L and β.
        dtype: of the rows.

    Raises:
        ValueError: naming the constant, its range in float32 and its value.
    """
    if dtype == torch.float64:
        return
    lengths = {"clip_norm": head.clip_norm, "lipschitz / l2_reg": head.lipschitz / head.l2_reg}
    if head.radius is not None:
        lengths["radius"] = head.radius
    for name, value in lengths.items():
        if not NARROW_LEAST <= value <= NARROW_LARGEST:
            raise ValueError(
                f"{name} must lie in [{NARROW_LEAST}, {NARROW_LARGEST}] for rows in {dtype}, "
                f"got {value}"
            )
    if not head.smoothness <= NARROW_SMOOTHNESS:
        raise ValueError(
            f"l2_reg + curvature must be <= {NARROW_SMOOTHNESS} for rows in {dtype}, "
            f"got {head.smoothness}"
        )
