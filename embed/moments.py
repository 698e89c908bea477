"""Mean, second moment, principal directions and norms of rows that arrive in blocks."""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor


def moments(blocks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean (p,) and mean of x xᵀ (p, p) over all rows, in float64."""
    count, total, outer = 0, torch.zeros(()), torch.zeros(())
    for block in blocks:
        rows = block.to(torch.float64)
        count += len(rows)
        total = total + rows.sum(0)
        outer = outer + rows.T @ rows
    return total / count, outer / count


def principal_directions(covariance: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvalues (q,), clamped at 0, and eigenvectors (p, q), largest first.

    The sign of a direction is fixed by its largest entry, so that it does not depend on the solver.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values = values.flip(0)[:components].clamp_min(0)
    return values, signed(vectors.flip(1)[:, :components])


def signed(directions: Tensor) -> Tensor:
    """Columns of (p, q), each with the sign that makes its largest entry positive."""
    largest = directions.abs().argmax(0, keepdim=True)
    return directions * directions.gather(0, largest).sign()


def whitening_scale(variances: Tensor, total: Tensor, shrinkage: float) -> Tensor:
    """Standard deviations (q,) after mixing `shrinkage` of the mean variance into each."""
    mixed = (1 - shrinkage) * variances + shrinkage * total
    return mixed.clamp_min(torch.finfo(torch.float32).eps * float(total)).sqrt()


def norm_quantile(blocks: Iterable[Tensor], quantile: float) -> float:
    """The given quantile of the rows' Euclidean norms."""
    norms = torch.cat([torch.linalg.vector_norm(b.to(torch.float64), dim=1) for b in blocks])
    return float(np.quantile(norms.numpy(), quantile))
