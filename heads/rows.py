"""Checks of the solvers' input, made once."""

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 17  # numbers that are looked at together, so that they stay in the cache
SLACK = 1e-12  # by which a row's norm, as computed in float64, may exceed a bound; charged


def check_rows(x: Tensor, y: Tensor, num_classes: int, clip_norm: float) -> None:
    """Refuses rows on which a stated sensitivity would not hold.

    Args:
        x: (..., n, d) float, rows ‖x‖ ≤ clip_norm.
        y: (..., n) int64 in [0, num_classes), or (..., n, K) int8 findings of 0, 1, or -1: unknown.
        num_classes: K.
        clip_norm: c.

    Raises:
        ValueError: wrong shapes or types, no rows, a label out of range, a row that is not
            finite or longer than the clip norm.
    """
    check_trainable(x, y, num_classes)
    check_norms(row_norms(x), clip_norm, x.shape[:-1])


def row_norms(x: Tensor) -> Tensor:
    """(rows,) float64 ‖x‖ of all rows of (..., d), each to (d/2 + 2) 2⁻⁵³ of itself."""
    rows = x.reshape(-1, x.shape[-1])
    norms = rows.new_empty(len(rows), dtype=torch.float64)
    step = max(1, CHUNK // x.shape[-1])
    for start in range(0, len(rows), step):
        part = slice(start, start + step)
        torch.linalg.vector_norm(rows[part].double(), dim=-1, out=norms[part])
    return norms


def check_norms(norms: Tensor, clip_norm: float, shape: torch.Size) -> None:
    """Refuses rows that are not finite or longer than the clip norm.

    Args:
        norms: (rows,) float64.
        clip_norm: c.
        shape: (..., n) of the rows.

    Raises:
        ValueError: the first such row.
    """
    wrong = ~(norms <= clip_norm * (1 + SLACK))  # a NaN is wrong too
    if wrong.any():
        place = int(wrong.nonzero()[0])
        index = [int(i) for i in np.unravel_index(place, shape)]
        raise ValueError(
            f"x must have finite rows of norm <= clip_norm = {clip_norm}, "
            f"got norm {norms[place].item()} in row {index}"
        )


def check_trainable(x: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuses what no solver takes, whatever the norms.

    Raises:
        ValueError: as in `check_rows`.
    """
    if y.dtype == torch.int8:
        check_findings(x, y, num_classes)
    else:
        check_labels(x, y, num_classes)
    if x.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"x must be float32 or float64, got {x.dtype}")


def check_findings(x: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuses findings that are not (..., n, K) int8 of 1, 0 and -1, one row for each of x."""
    if x.ndim not in (2, 3) or not x.numel() or y.shape != (*x.shape[:-1], num_classes):
        raise ValueError(
            "x must be (n, d) or (users, n, d), not empty, with int8 findings (..., n, "
            f"{num_classes}), got x {tuple(x.shape)} and y {y.dtype} {tuple(y.shape)}"
        )
    if y.dtype != torch.int8 or y.min() < -1 or y.max() > 1:
        raise ValueError(
            f"y must be int8 findings of 0, 1 or -1, got {y.dtype} from {int(y.min())} to "
            f"{int(y.max())}"
        )


def check_labels(x: Tensor, y: Tensor, num_classes: int) -> None:
    """Refuses shapes, types and labels that do not fit together.

    Raises:
        ValueError: as in `check_rows`, norms excepted.
    """
    if x.ndim not in (2, 3) or x.shape[:-1] != y.shape:
        raise ValueError(
            "x must be (n, d) or (users, n, d) with y (n,) or (users, n), "
            f"got x {tuple(x.shape)} and y {tuple(y.shape)}"
        )
    if x.numel() == 0:
        raise ValueError(f"x must hold at least one row and column, got shape {tuple(x.shape)}")
    if y.dtype != torch.int64:
        raise ValueError(f"y must be int64, got {y.dtype}")
    low, high = y.min().item(), y.max().item()
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        raise ValueError(f"y must lie in [0, {num_classes}), got {wrong}")


def check_counts(counts: Tensor | None, x: Tensor) -> Tensor | None:
    """The number of true rows per user of a padded batch, or None where all rows are true.

    Padding rows are the last ones of a user. What they hold does not matter, but the solvers
    refuse there what they refuse in any row.

    Raises:
        ValueError: counts of another type or shape than int64 (users,), below 1 or above n.
    """
    if counts is None:
        return None
    users, n = x.shape[:2] if x.ndim == 3 else (1, x.shape[0])
    if counts.shape != (users,):
        raise ValueError(f"counts must be of shape ({users},), got {tuple(counts.shape)}")
    if counts.dtype != torch.int64:
        raise ValueError(f"counts must be int64, got {counts.dtype}")
    if counts.min() < 1 or counts.max() > n:
        wrong = counts[(counts < 1) | (counts > n)][0].item()
        raise ValueError(f"counts must lie in [1, {n}], got {wrong}")
    return None if (counts == n).all() else counts.to(x.device)
