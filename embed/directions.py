"""Which public directions a transform keeps, and in what units."""

from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor

from embed.class_scatter import scatter_of
from embed.moments import moments, principal_directions, signed, whitening_scale

Directions = Literal["principal", "mixed", "discriminant"]
RESTRICTED = 512  # principal directions among which discriminant ones are sought
# λ and f of `separating`: for public classes that tell much of the private ones, or less.
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
    """Centre m (p,), directions P (p, q) of length 1 and units s (q,): x -> Pᵀ(x − m)/s.

    Args:
        public: the set itself, which may have labels.
        blocks: its rows (b, p), as often as asked.
        components: q in [1, p].
        kind: "principal", or one that labels shape.
        whiten: divide principal directions by their (shrunk) standard deviation.
        shrinkage: see `PublicTransform.fit`.

    Raises:
        ValueError: rows whose second moments overflow, or no labels where they are needed.
    """
    mean, second = moments(blocks())
    covariance = second - torch.outer(mean, mean)
    if not covariance.isfinite().all():
        raise ValueError("public rows must have finite second moments, got an overflow")
    if kind == "principal":
        variances, basis = principal_directions(covariance, components)
        if not whiten:
            return mean, basis, torch.ones(components, dtype=torch.float64)
        average = covariance.trace() / len(mean)
        return mean, basis, whitening_scale(variances, average, shrinkage)
    _, basis = principal_directions(covariance, max(components, RESTRICTED))
    within, between = scatter_of(public, lambda rows: (rows.double() - mean) @ basis)
    if within is None or between is None:
        raise ValueError(f"public must have labels of two classes for directions {kind!r}")
    directions = basis @ separating(within, between, components, *MIXTURES[kind])
    lengths = torch.linalg.vector_norm(directions, dim=0)
    return mean, signed(directions / lengths), 1 / lengths


def separating(
    within: Tensor, between: Tensor, components: int, share: float, floor: float
) -> Tensor:
    """(p, q) directions in which classes differ most for how much their rows do.

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
