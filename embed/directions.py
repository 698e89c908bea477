"""Public directions that a transform keeps, and the moments and class scatter behind them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from embed.store import EmbeddingSet
from pretrain import check

Directions = Literal["principal", "tempered", "mixed", "discriminant", "hedge"]
TEMPER = 0.7  # power of its deviation that a tempered direction is divided by
FAINT = 0.15  # of their length, that directions after the leading ones keep
RESTRICTED = 512  # principal directions among which discriminant ones are sought
# λ of `separating` and j of `scatter_floor`; "discriminant" relies most on public classes.
MIXTURES = {"mixed": (0.3, 14), "hedge": (0.1, 128), "discriminant": (0.03, 384)}
LEAST = 1e-3  # of W's largest eigenvalue, that a floor is


class PublicMoments:
    """Moments and class scatter of public rows, found once, and directions of every kind.

    Args:
        public: the public set, with labels or without.
        blocks: function that yields its rows, (b, p).
        exact: sum in float64; in float32 half as long, for transforms that are only tried.
    """

    def __init__(
        self, public: object, blocks: Callable[[], Iterator[Tensor]], *, exact: bool = True
    ) -> None:
        known = public if isinstance(public, EmbeddingSet) else None
        self.blocks, self.exact = blocks, exact
        self.dtype = torch.float64 if exact else torch.float32
        self.parts = known.parts if known else ()
        self.labels = torch.from_numpy(np.array(known.labels)) if known and known.labelled else None
        self._separating: dict[tuple[Directions, int], Tensor] = {}
        self._scatter: dict[int, RowMoments] = {}

    def directions(
        self,
        components: int,
        *,
        kind: Directions,
        whiten: bool,
        shrinkage: float,
        leading: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Centre m (p,), directions P (p, q) and units s (q,): x -> Pᵀ(x − m)/s.

        Rows of several encoders are brought to the same public variance each, which P contains.

        Args:
            components: q in [1, p].
            kind: "principal" or "tempered"; "mixed" or "discriminant", which need labels; "hedge",
                which is "tempered" without labels.
            whiten: divide principal directions by their (shrunk) standard deviation.
            shrinkage: see `PublicTransform.fit`.
            leading: features after the first so many are divided by 1/`FAINT`; None: none.

        Raises:
            ValueError: second moments that overflow, missing labels, or `leading` out of range.
        """
        check.within(f"[1, {components}]", **check.present(leading=leading))
        mean, average, variances, basis = self.principal
        directions = self._separated(kind, max(components, RESTRICTED))
        faint = torch.ones(components, dtype=torch.float64)
        faint[components if leading is None else leading :] = 1 / FAINT
        if directions is not None:
            directions = directions[:, :components]
            lengths = torch.linalg.vector_norm(directions, dim=0)
            return mean, signed(directions / lengths), faint / lengths
        basis = basis[:, :components]
        if not whiten:
            return mean, basis, faint
        scale = whitening_scale(variances[:components], average, shrinkage)
        return mean, basis, faint * (scale if kind == "principal" else scale**TEMPER)

    def among(self, directions: Tensor, components: int | None) -> Tensor | None:
        """(q, k) D of norm 1: (p, q) `directions` times D are "discriminant" ones, up to a factor.

        A least-squares fit, exact from q = `RESTRICTED` on. None for k None, or without labels.
        """
        if components is None:
            return None
        check.within(f"[1, {directions.shape[1]}]", discriminants=components)
        wide = max(directions.shape[1], RESTRICTED)
        if self._scatter_along(wide)[0] is None:
            return None
        sought = self._separated("discriminant", wide)
        assert sought is not None
        found = torch.linalg.lstsq(directions, sought[:, :components]).solution
        return found / (torch.linalg.matrix_norm(found, 2) * (1 + 2.0**-40))

    def projected(self, mean: Tensor, basis: Tensor) -> Iterator[Tensor]:
        """Blocks of (x − m)P, (b, q)."""
        mean, basis = mean.to(self.dtype), basis.to(self.dtype)
        return ((block.to(self.dtype) - mean) @ basis for block in self.blocks())

    @cached_property
    def principal(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Mean, mean variance, all principal variances and directions, parts brought together."""
        mean, second, *_ = row_moments(self.blocks(), dtype=self.dtype)
        covariance = second - torch.outer(mean, mean)
        if not covariance.isfinite().all():
            raise ValueError("public rows must have finite second moments, got an overflow")
        units, covariance = balanced(covariance, self.parts)
        variances, basis = principal_directions(covariance, len(mean))
        return mean, covariance.trace() / len(mean), variances, units[:, None] * basis

    def _separated(self, kind: Directions, wide: int) -> Tensor | None:
        """(p, wide) directions that separate public classes; None for a kind that needs none."""
        if kind not in MIXTURES:
            return None
        within, between = self._scatter_along(wide)
        if within is None or between is None:
            if kind == "hedge":
                return None
            raise ValueError(f"public must have labels of two classes for directions {kind!r}")
        if (kind, wide) not in self._separating:
            share, rank = MIXTURES[kind]
            found = separating(within, between, wide, share, scatter_floor(within, rank))
            self._separating[kind, wide] = self.principal[3][:, :wide] @ found
        return self._separating[kind, wide]

    def _scatter_along(self, wide: int) -> tuple[Tensor | None, Tensor | None]:
        if self.labels is None:
            return None, None
        if wide not in self._scatter:
            rows = self.projected(self.principal[0], self.principal[3][:, :wide])
            self._scatter[wide] = row_moments(rows, self.labels, dtype=self.dtype)
        return self._scatter[wide][2:]


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

    Generalised eigenvectors of B + λ(W + B) against W + f I, in units where the latter is I:
    Fisher's discriminant for λ = 0, and closer to principal components the larger λ. The floor f
    leaves directions of less variance, which noise would drown, small.

    Args:
        within: (p, p) W.
        between: (p, p) B, of class means.
        components: q.
        share: λ.
        floor: f > 0.

    Examples:
        Classes differ along the second axis, rows within them along the first:

        >>> within, between = torch.tensor([[4.0, 0], [0, 1]]), torch.tensor([[0.0, 0], [0, 1]])
        >>> separating(within, between, 1, 0.0, 0.4).flatten().abs()
        tensor([0.0000, 0.8452])
    """
    values, vectors = torch.linalg.eigh(within)
    root = vectors * (values + floor).rsqrt() @ vectors.T
    sought = between + share * (within + between)
    return root @ principal_directions(root @ sought @ root, components)[1]


def scatter_floor(within: Tensor, rank: int) -> float:
    """The j-th largest eigenvalue of W, or the last if there are fewer; at least `LEAST` of w₁.

    A share of w₁ would leave another number of directions for every encoder and public set.

    Examples:
        >>> [scatter_floor(torch.diag(torch.tensor([1.0, 4.0, 2.0])), j) for j in (1, 2, 9)]
        [4.0, 2.0, 1.0]
    """
    values = torch.linalg.eigvalsh(within).flip(0)
    least = max(LEAST * float(values[0]), torch.finfo(torch.float64).tiny)
    return max(float(values[min(rank, len(values)) - 1]), least)


class RowMoments(NamedTuple):
    """Moments of rows, and their scatter within and between classes; all float64."""

    mean: Tensor  # (q,)
    second: Tensor  # (q, q) mean of x xᵀ
    within: Tensor | None  # (q, q) W; None without labels, for one class, or one row of each
    between: Tensor | None  # (q, q) B


def row_moments(
    blocks: Iterable[Tensor],
    labels: Tensor | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    scattered: slice = slice(None),
) -> RowMoments:
    """Moments of rows, their covariance within classes, and that of class means, in one pass.

    W = Σ_k Σ_i (x − x̄_k)(x − x̄_k)ᵀ / (n − K), and B = Cov(x̄_k) − W/h without its negative
    eigenvalues, h the harmonic mean of the class sizes: the means' covariance less what W adds to
    it (method of moments of the one-way random-effects model).

    Args:
        blocks: rows (b, q).
        labels: (n,) >= 0, any number of classes.
        dtype: of the sums of a block.
        scattered: columns of W and B.
    """
    rows_in_all = 0
    total, outer, sums, counts = torch.zeros(4, dtype=torch.float64)
    known, place = (None, None) if labels is None else labels.unique(return_inverse=True)
    for block in blocks:
        rows = block.to(dtype)
        total = total + rows.double().sum(0)
        outer = outer + (rows.T @ rows).double()
        if known is not None and place is not None:
            own = place[rows_in_all : rows_in_all + len(rows)]
            of_class = torch.zeros(len(known), rows.shape[1], dtype=torch.float64)
            sums = sums + of_class.index_add_(0, own, rows.double())
            counts = counts + torch.bincount(own, minlength=len(known))[:, None]
        rows_in_all += len(rows)
    mean, second = total / rows_in_all, outer / rows_in_all
    classes = counts.numel()
    if classes < 2 or rows_in_all == classes:
        return RowMoments(mean, second, None, None)
    sums = sums[:, scattered]
    means = sums / counts
    within = (outer[scattered, scattered] - (means * counts).T @ means) / (rows_in_all - classes)
    deviations = means - means.mean(0)
    between = deviations.T @ deviations / (classes - 1) - within * (1 / counts).mean()
    return RowMoments(mean, second, _positive(within), _positive(between))


def _positive(covariance: Tensor) -> Tensor:
    """The matrix without its negative eigenvalues, which rounding or a difference leaves."""
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * values.clamp(min=0) @ vectors.T


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
