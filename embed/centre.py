"""Rows taken about a known mean and clipped again, for pictures that have much in common."""

import math

from torch import Tensor

from embed.clip import add_constant_and_clip
from embed.project import in_blocks, product

TIGHT = 0.6  # of the length that is left about the centre: nearly every row is clipped again
LEAST = 0.05  # of r², that is left at least


def about(
    rows: Tensor,
    centre: Tensor,
    length: float,
    clip_norm: float,
    constant: float,
    discriminants: Tensor | None = None,
) -> Tensor:
    """Moves rows [a, x] to [a, clip((y − m)/s)], m the centre, y the first k features of x or Dᵀx.

    The features' norm is at most r before and after, whatever the centre is.

    Args:
        rows: (n, q + 1) floats, the constant a first, features of norm at most r.
        centre: (k,) m, at most r long, k <= q.
        length: s, as `length_about` says.
        clip_norm: c, r = √(c² − a²).
        constant: a.
        discriminants: (q, k) D; None: the first k columns of the identity.

    Returns:
        (n, k + 1) of the type of the rows.

    Examples:
        >>> import torch
        >>> rows = torch.tensor([[1.0, 0.6, 0.8], [1.0, 0.6, -0.8]])
        >>> about(rows, torch.tensor([0.6, 0.0]), 0.5, 2**0.5, 1.0)
        tensor([[ 1.0000,  0.0000,  1.0000],
                [ 1.0000,  0.0000, -1.0000]])
    """
    k = len(centre)

    def moved(block: Tensor, _: int) -> Tensor:
        if discriminants is None:
            features = block[:, 1 : k + 1].double()
        else:
            features = product(block[:, 1:].double(), discriminants)
        features = (features - centre.double()) / length
        return add_constant_and_clip(features, clip_norm, constant, dtype=rows.dtype)

    return in_blocks(rows, moved, rows.new_empty(len(rows), k + 1))


def length_about(centre: float, rows: float = 1.0, kept: float = 1.0) -> float:
    """Scale s by which features are divided after their centre m is subtracted.

    Rows of mean squared length e r² lie r √(e − h) from m on average (root mean square), h r² =
    ‖m‖²; in some of the directions, √v of that, v the share of the rows' variance that is `kept`. s
    is `TIGHT` times this distance over r.

    Args:
        centre: h.
        rows: e.
        kept: v.
    """
    return TIGHT * math.sqrt(max(LEAST, rows - centre) * kept)
