"""Public rows projected once, and their scatter without those that a task poses as private.

In float32 and for simulations only: what is released goes through `embed.PublicTransform.fit`.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.clip import add_constant_and_clip
from embed.public_scatter import PublicScatter, balanced, signed
from embed.transform import CLIP_QUANTILE, COMPONENTS, CONSTANT

BLOCK = 1 << 13  # rows


@dataclass(frozen=True)
class RawCoordinates:
    """x -> [a, y], y = clip(Pᵀ(x − m₀)/r), as a transform of all public rows has it."""

    mean: Tensor  # (p,) float32
    basis: Tensor  # (p, D) float32, divided by r

    @classmethod
    def fit(cls, public: EmbeddingSet) -> "RawCoordinates":
        """Raises ValueError for rows that are all alike."""
        total = torch.zeros(public.dim, dtype=torch.float64)
        outer = torch.zeros(public.dim, public.dim, dtype=torch.float64)
        start = torch.from_numpy(np.array(public.embeddings[:BLOCK])).float().mean(0)
        for block in _blocks(public):
            apart = block - start
            total += apart.sum(0)
            outer += apart.mT @ apart
        shift = total / len(public)
        covariance = outer / len(public) - torch.outer(shift, shift)
        units, scaled = balanced(covariance, public.parts)
        width = min(COMPONENTS, public.dim, len(public) - 1)
        vectors = torch.linalg.eigh(scaled)[1].flip(1)[:, :width]
        basis = (units[:, None] * signed(vectors)).float()
        mean = (start + shift).float()
        norms = torch.cat([((block - mean) @ basis).norm(dim=1) for block in _blocks(public)])
        scale = float(np.quantile(norms.numpy(), CLIP_QUANTILE))
        if not scale > 0:
            raise ValueError(f"public rows must differ, got norm {scale} at the clip quantile")
        return cls(mean, basis / scale)

    def of(self, source: EmbeddingSet) -> Tensor:
        """(N, D + 1) float32 rows [a, y]."""
        norm = (1 + CONSTANT**2) ** 0.5
        return torch.cat(
            [
                add_constant_and_clip((block - self.mean) @ self.basis, norm, CONSTANT)
                for block in _blocks(source)
            ]
        )

    def transform(self, scatter: PublicScatter) -> PublicTransform:
        """Transform of rows that are raw coordinates already, with the scatter of public ones."""
        width, norm = self.basis.shape[1], (1 + CONSTANT**2) ** 0.5
        return replace(
            PublicTransform.identity(width, norm, CONSTANT),
            row_mean=scatter.mean,
            within_class=scatter.within,
            between_class=scatter.between,
            fitted_on="a rehearsal's public rows",
        )


@dataclass(frozen=True)
class ClassTotals:
    """Sums by which the scatter of public rows is found without some of them."""

    outer: Tensor  # (D, D) float64 Σ y yᵀ
    sums: Tensor  # (L, D) float64 of each label
    counts: Tensor  # (L,) float64

    @classmethod
    def of(cls, rows: Tensor, labels: np.ndarray, classes: int) -> "ClassTotals":
        """Totals of (n, D) rows with (n,) labels in [0, L)."""
        outer = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
        sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64)
        place = torch.from_numpy(labels.astype(np.int64))
        for start in range(0, len(rows), BLOCK):
            block = rows[start : start + BLOCK].double()
            outer += block.mT @ block
            sums.index_add_(0, place[start : start + BLOCK], block)
        return cls(outer, sums, torch.bincount(place, minlength=classes).double())

    def without(self, rows: Tensor, labels: np.ndarray) -> PublicScatter:
        """Scatter of the others of the rows that are summed."""
        taken = ClassTotals.of(rows, labels, len(self.counts))
        counts = self.counts - taken.counts
        kept = counts > 0
        return PublicScatter.of_totals(
            self.outer - taken.outer, (self.sums - taken.sums)[kept], counts[kept]
        )


def _blocks(source: EmbeddingSet):
    for start in range(0, len(source), BLOCK):
        yield torch.from_numpy(np.array(source.embeddings[start : start + BLOCK])).float()
