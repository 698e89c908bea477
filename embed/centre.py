"""Rows taken about a known mean and clipped again, for pictures that have much in common."""

import math

import torch
from torch import Tensor

from embed.clip import add_constant_and_clip
from embed.project import in_blocks

TIGHT = 0.6  # of the length that is left about the centre: nearly every row is clipped again
LEAST = 0.05  # of a squared length, that is left at least


def about(rows: Tensor, centre: Tensor, clip_norm: float, constant: float) -> Tensor:
    """Moves rows [a, x] to [a, clip((x − m)/s)], m the centre and s from `length_about`.

    The features' norm is at most r before and after, whatever the centre is.

    Args:
        rows: (n, q + 1) floats, the constant a first, features of norm at most r.
        centre: (q,) m, at most r long.
        clip_norm: c, r = √(c² − a²).
        constant: a.

    Returns:
        (n, q + 1) of the type of the rows.

    Examples:
        >>> rows = torch.tensor([[1.0, 0.6, 0.8], [1.0, 0.6, -0.8]])
        >>> about(rows, torch.tensor([0.6, 0.0]), 2**0.5, 1.0)
        tensor([[ 1.0000,  0.0000,  1.0000],
                [ 1.0000,  0.0000, -1.0000]])
    """
    scale = length_about(centre, clip_norm, constant)

    def moved(block: Tensor, _: int) -> Tensor:
        features = (block[:, 1:].double() - centre.double()) / scale
        return add_constant_and_clip(features, clip_norm, constant, dtype=rows.dtype)

    return in_blocks(rows, moved, torch.empty_like(rows))


def length_about(centre: Tensor, clip_norm: float, constant: float) -> float:
    """Scale s by which features are divided after the (q,) centre m is subtracted.

    With r = √(c² − a²), rows of length r whose mean is m lie √(r² − ‖m‖²) from it on average (root
    mean square). s is `TIGHT` times this distance over r.
    """
    reach = math.sqrt(clip_norm**2 - constant**2)
    common = float(centre.double().square().sum()) / reach**2
    return TIGHT * math.sqrt(max(LEAST, 1 - common))
