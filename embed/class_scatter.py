"""How public rows of one class scatter, and how class means do: what labels of public data show."""

from collections.abc import Callable, Iterable

import numpy as np
import torch
from torch import Tensor

from embed.clip import CHUNK
from embed.store import EmbeddingSet


def scatter_of(
    public: object, transform: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """`class_scatter` of a labelled set's transformed rows.

    Returns:
        (q, q) W and B; None and None where there are no labels, or too few.
    """
    if not isinstance(public, EmbeddingSet) or not public.labelled:
        return None, None
    labels = torch.from_numpy(np.array(public.labels))
    parts = (slice(start, start + CHUNK) for start in range(0, len(public), CHUNK))
    found = class_scatter(
        (transform(torch.from_numpy(np.array(public.embeddings[part]))), labels[part])
        for part in parts
    )
    return (None, None) if found is None else found


def class_scatter(blocks: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor] | None:
    """Covariance of rows within their class, and of class means.

    W = Σ_k Σ_i (x − x̄_k)(x − x̄_k)ᵀ / (n − K), and B = Cov(x̄_k) − W/h without its negative
    eigenvalues, h the harmonic mean of the class sizes: the means' covariance less what W adds to
    it (method of moments of the one-way random-effects model).

    Args:
        blocks: rows (b, q) and their labels (b,) >= 0, any number of classes.

    Returns:
        (q, q) W and B, float64; None where there is but one class, or one row of each.
    """
    sums: dict[int, Tensor] = {}
    sizes: dict[int, int] = {}
    outer = torch.zeros(())
    for rows, labels in blocks:
        wide = rows.to(torch.float64)
        outer = outer + wide.T @ wide
        found, place, counts = labels.unique(return_inverse=True, return_counts=True)
        totals = torch.zeros(len(found), wide.shape[1], dtype=torch.float64)
        totals.index_add_(0, place, wide)
        for label, total, count in zip(found.tolist(), totals, counts.tolist(), strict=True):
            sums[label] = sums.get(label, 0) + total
            sizes[label] = sizes.get(label, 0) + count
    classes, rows_in_all = len(sums), sum(sizes.values())
    if classes < 2 or rows_in_all == classes:
        return None
    counts = torch.tensor([sizes[label] for label in sums], dtype=torch.float64)
    means = torch.stack([sums[label] for label in sums]) / counts[:, None]
    within = (outer - (means * counts[:, None]).T @ means) / (rows_in_all - classes)
    deviations = means - means.mean(0)
    between = deviations.T @ deviations / (classes - 1) - within * (1 / counts).mean()
    return _positive(within), _positive(between)


def _positive(covariance: Tensor) -> Tensor:
    """Without the negative eigenvalues that rounding, or a difference, leaves."""
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * values.clamp(min=0) @ vectors.T
