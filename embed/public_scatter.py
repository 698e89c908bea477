"""Principal directions of public rows, and their scatter within and between classes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

NEGLIGIBLE = 1e-9  # guard: share of the other eigenvalues, or shares, that is rounding
REGULAR = 1e-6  # guard: of the mean eigenvalue; keeps a covariance regular where rows are few


@dataclass(frozen=True)
class PublicScatter:
    """Mean of public rows, their covariance within classes, and that of the class means.

    W = Σ_k Σ_i (y − ȳ_k)(y − ȳ_k)ᵀ / (n − K), and B = Cov(ȳ_k) − W/h without its negative
    eigenvalues, h the harmonic mean of the class sizes: the means' covariance less what W adds to
    it (method of moments of the one-way random-effects model). Without labels of two classes, or
    with one row of each class, W is the covariance of all rows, and there is no B.
    """

    mean: Tensor  # (D,) float64
    within: Tensor  # (D, D) float64 W
    between: Tensor | None = None  # (D, D) float64 B; None: no labels

    @property
    def covariance(self) -> Tensor:
        """(D, D) T = W + B, of all rows where classes are equally frequent."""
        return self.within if self.between is None else self.within + self.between

    @property
    def of_means(self) -> Tensor:
        """(D, D) B; raises ValueError if the public rows had no labels of two classes."""
        if self.between is None:
            raise ValueError("public must have labels of two classes for guesses of class means")
        return self.between

    def whitening(self, rank: int) -> Tensor:
        """(D, D) (W + fI)^−½, f the eigenvalue of W of that rank from the largest; kept."""
        if rank not in self._whitenings:
            values = torch.linalg.eigvalsh(self.within).flip(0)
            least = NEGLIGIBLE * float(values.clamp(min=0).mean())
            floor = max(float(values[min(rank, len(values)) - 1]), least, torch.finfo().tiny)
            values, vectors = torch.linalg.eigh(self.within)
            root = vectors * (values.clamp(min=0) + floor).rsqrt() @ vectors.T
            self._whitenings[rank] = root
        return self._whitenings[rank]

    @cached_property
    def _whitenings(self) -> dict[int, Tensor]:
        return {}

    @classmethod
    def of(cls, blocks: Iterable[Tensor], labels: Tensor | None = None) -> "PublicScatter":
        """Scatter of rows in blocks (b, D), in one pass; (n,) labels >= 0, any number of them."""
        rows = 0
        total, outer, sums, counts = torch.zeros(4, dtype=torch.float64)
        known, place = (None, None) if labels is None else labels.unique(return_inverse=True)
        for block in blocks:
            block = block.double()
            total, outer = total + block.sum(0), outer + block.T @ block
            if known is not None and place is not None:
                own = place[rows : rows + len(block)]
                of_class = torch.zeros(len(known), block.shape[1], dtype=torch.float64)
                sums = sums + of_class.index_add_(0, own, block)
                counts = counts + torch.bincount(own, minlength=len(known))[:, None]
            rows += len(block)
        if known is None:  # all of one class
            sums, counts = total[None], torch.full((1, 1), float(rows), dtype=torch.float64)
        return cls.of_totals(outer, sums, counts[:, 0])

    @classmethod
    def of_totals(cls, outer: Tensor, sums: Tensor, counts: Tensor) -> "PublicScatter":
        """Scatter by (D, D) Σ y yᵀ, and (K, D) sums and (K,) counts > 0 of the classes."""
        classes, rows = len(counts), float(counts.sum())
        mean = sums.sum(0) / rows
        if classes < 2 or rows == classes:
            return cls(mean, positive(outer / rows - torch.outer(mean, mean)))
        means = sums / counts[:, None]
        within = (outer - (means * counts[:, None]).T @ means) / (rows - classes)
        deviations = means - means.mean(0)
        between = deviations.T @ deviations / (classes - 1) - within * (1 / counts).mean()
        return cls(mean, positive(within), positive(between))

    def along(self, directions: Tensor, size: float) -> "PublicScatter":
        """That of (D, q) directions' rows Aᵀ(y − ȳ)/size."""

        def projected(matrix: Tensor) -> Tensor:
            return directions.T @ matrix @ directions / size**2

        between = None if self.between is None else projected(self.between)
        mean = self.mean.new_zeros(directions.shape[1])
        return PublicScatter(mean, projected(self.within), between)


def principal_directions(
    blocks: Iterable[Tensor], components: int, parts: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Mean (p,) of public rows in blocks (b, p), and their leading directions (p, D).

    Rows of several encoders, of `parts` columns each, are brought to one variance first, which the
    directions contain. The sign of a direction is fixed by its largest entry.

    Raises:
        ValueError: second moments that overflow.
    """
    found = PublicScatter.of(blocks)
    if not found.within.isfinite().all():
        raise ValueError("public rows must have finite second moments, got an overflow")
    units, covariance = balanced(found.within, parts)
    _, vectors = torch.linalg.eigh(covariance)
    return found.mean, units[:, None] * signed(vectors.flip(1)[:, :components])


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


def positive(covariance: Tensor) -> Tensor:
    """The matrix without its negative eigenvalues, which rounding or a difference leaves."""
    if not covariance.isfinite().all():
        return covariance
    values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
    return vectors * values.clamp(min=0) @ vectors.T


def signed(directions: Tensor) -> Tensor:
    """Columns of (p, q), each with the sign that makes its largest entry positive."""
    largest = directions.abs().argmax(0, keepdim=True)
    return directions * directions.gather(0, largest).sign()
