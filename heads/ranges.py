"""Scales that floating point carries: where constants overflow or underflow, nothing holds."""

import math

LEAST, LARGEST = 1e-60, 1e60  # of a constant in float64: products of four are still normal numbers


def require_scale(name: str, value: float) -> None:
    """Refuses a constant that is not positive and finite, or whose powers are not.

    Raises:
        ValueError: naming the constant, its range and its value.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value}")
    if not LEAST <= value <= LARGEST:
        raise ValueError(f"{name} must lie in [{LEAST}, {LARGEST}], got {value}")
