"""Public directions that a transform keeps, and the moments and class scatter behind them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from embed.clip import CHUNK
from embed.store import EmbeddingSet

Directions = Literal["principal", "tempered", "mixed", "discriminant"]
TEMPER = 0.7  # power of its deviation that a tempered direction is divided by
RESTRICTED = 512  # principal directions among which discriminant ones are sought
# λ and f of `separating`; "discriminant" relies more on public classes than "mixed" does.
MIXTURES = {"mixed": (0.3, 0.3), "discriminant": (0.03, 0.005)}


def fitted_directions(
    public: object,
    blocks: Callable[[], Iterator[Tensor]],
    components: int,
    *,
    kind: Directions,
    whiten: bool,
    shrinkage: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Centre m (p,), directions P (p, q) and units s (q,): x -> Pᵀ(x − m)/s.

    Rows of several encoders are brought to the same public variance each, which P contains.

    Args:
        public: the public set, with labels or without.
        blocks: function that yields its rows, (b, p).
        components: q in [1, p].
        kind: "principal" or "tempered", or "mixed" or "discriminant", which need labels.
        whiten: divide principal directions by their (shrunk) standard deviation.
        shrinkage: see `PublicTransform.fit`.

    Raises:
        ValueError: second moments that overflow, or missing labels.
    """
    mean, second = moments(blocks())
    covariance = second - torch.outer(mean, mean)
    if not covariance.isfinite().all():
        raise ValueError("public rows must have finite second moments, got an overflow")
    units, covariance = balanced(covariance, parts_of(public))
    if kind in ("principal", "tempered"):
        variances, basis = principal_directions(covariance, components)
        basis = units[:, None] * basis
        if not whiten:
            return mean, basis, torch.ones(components, dtype=torch.float64)
        average = covariance.trace() / len(mean)
        scale = whitening_scale(variances, average, shrinkage)
        return mean, basis, scale**TEMPER if kind == "tempered" else scale
    basis = units[:, None] * principal_directions(covariance, max(components, RESTRICTED))[1]
    within, between = scatter_of(public, lambda rows: (rows.double() - mean) @ basis)
    if within is None or between is None:
        raise ValueError(f"public must have labels of two classes for directions {kind!r}")
    directions = basis @ separating(within, between, components, *MIXTURES[kind])
    lengths = torch.linalg.vector_norm(directions, dim=0)
    return mean, signed(directions / lengths), 1 / lengths


def parts_of(public: object) -> tuple[int, ...]:
    """Columns of each encoder of a set's rows; empty for rows of one."""
    return public.parts if isinstance(public, EmbeddingSet) else ()


def balanced(covariance: Tensor, parts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """(p,) factors with which all parts of a row have one variance in all, and (p, p) in them.

    Examples:
        >>> units, scaled = balanced(torch.diag(torch.tensor([1.0, 3.0, 16.0])), (2, 1))
        >>> scaled.diagonal()
        tensor([ 2.5000,  7.5000, 10.0000])
    """
    if len(parts) < 2:
        return covariance.new_ones(len(covariance)), covariance
    variances = torch.stack([part.sum() for part in covariance.diagonal().split(list(parts))])
    equal = (variances.mean() / variances).sqrt().where(variances > 0, 1.0)
    units = equal.repeat_interleave(torch.tensor(parts))
    return units, units[:, None] * covariance * units


def separating(
    within: Tensor, between: Tensor, components: int, share: float, floor: float
) -> Tensor:
    """(p, q) directions with the largest scatter of classes relative to the scatter within them.

    Generalised eigenvectors of B + λ(W + B) against W + f w₁ I, w₁ the largest eigenvalue of W, in
    units where the latter is I: Fisher's discriminant for λ = 0, and closer to principal components
    the larger λ. The floor f leaves directions of little variance, which noise would drown, small.

    Args:
        within: (p, p) W.
        between: (p, p) B, of class means.
        components: q.
        share: λ.
        floor: f > 0.

    Examples:
        Classes differ along the second axis, rows within them along the first:

        >>> within, between = torch.tensor([[4.0, 0], [0, 1]]), torch.tensor([[0.0, 0], [0, 1]])
        >>> separating(within, between, 1, 0.0, 0.1).flatten().abs()
        tensor([0.0000, 0.8452])
    """
    values, vectors = torch.linalg.eigh(within)
    floored = values + floor * values[-1].clamp(min=torch.finfo(torch.float64).tiny)
    root = vectors * floored.rsqrt() @ vectors.T
    sought = between + share * (within + between)
    return root @ principal_directions(root @ sought @ root, components)[1]


def scatter_of(
    public: object, transform: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """Class scatter of a labelled set's transformed rows.

    Returns:
        (q, q) W and B; None and None without labels, or with too few.
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
        (q, q) W and B, float64; None for one class, or one row of each class.
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
    """The matrix without its negative eigenvalues, which rounding or a difference leaves."""
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * values.clamp(min=0) @ vectors.T


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
    """Quantile of the rows' Euclidean norms."""
    norms = torch.cat([torch.linalg.vector_norm(b.to(torch.float64), dim=1) for b in blocks])
    return float(np.quantile(norms.numpy(), quantile))
