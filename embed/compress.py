"""Projection of embeddings to their leading public directions, shared by many transforms."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed.clip import check_finite
from embed.directions import PublicMoments
from embed.project import product, project, within
from embed.public_rows import as_tensor, checked_blocks
from embed.store import EmbeddingSet, columns
from embed.transform import PublicTransform
from pretrain import check

FLOAT32 = 100  # binary exponent: coordinates below 2^100 leave room for norms


class Coordinates(EmbeddingSet):
    """Compressed rows in memory; transforms fitted on them share what they have in common."""

    @cached_property
    def moments(self) -> PublicMoments:
        """Moments and class scatter, in float32."""
        return PublicMoments(self, lambda: map(as_tensor, self.blocks()), exact=False)


@dataclass(frozen=True)
class Compression:
    """x -> Pᵀ(x − m), the Q leading public principal directions.

    A public transform of at most Q components depends on nothing else of a row. To try many
    transforms, project every row once and fit on the coordinates: `fit_transform` on compressed
    rows and `PublicTransform.fit` on whole ones give the same rows, up to rounding.
    """

    mean: Tensor  # (p,) float64, or float32: not exact
    basis: Tensor  # (p, Q)
    variance_share: float  # mean variance over all p directions, over that of the Q kept

    @classmethod
    def fit(cls, public: EmbeddingSet, components: int, *, exact: bool = True) -> "Compression":
        """Finds the directions of a public set.

        Args:
            public: public embeddings.
            components: Q in [1, p].
            exact: compute in float64; in float32 half as long, where rows are only tried.

        Raises:
            ValueError: components out of range, or a row that is not finite.
        """
        check.within(f"[1, {public.dim}]", components=components)
        rows = PublicMoments(public, checked_blocks(public), exact=exact)
        mean, average, variances, basis = rows.principal
        basis, share = basis[:, :components], average / variances[:components].mean()
        if not exact:
            mean, basis = mean.float(), basis.float()
        return cls(mean, basis.contiguous(), float(share))

    def apply(self, embeddings: EmbeddingSet) -> Coordinates:
        """Coordinates of the rows, (N, Q) float32, in memory.

        A row too long for float32 keeps its direction; a transform clips it in any case.
        """
        coordinates = np.empty((len(embeddings), self.basis.shape[1]), np.float32)
        start, unit = 0, torch.ones(self.basis.shape[1], dtype=torch.float64)
        for block in embeddings.blocks():
            rows = _checked(block)
            if self.basis.dtype == torch.float32:
                rows = product(rows.float() - self.mean, self.basis)
            else:
                rows = within(project(rows, self.mean, self.basis, unit), FLOAT32)
            coordinates[start : start + len(block)] = rows.numpy()
            start += len(block)
        meta = {name: value for name, value in embeddings.meta_of_rows.items() if name != "parts"}
        return Coordinates(embeddings=coordinates, **columns(embeddings), meta=meta)

    def fit_transform(
        self,
        compressed: EmbeddingSet,
        *,
        whiten: bool = True,
        shrinkage: float = 0.01,
        **options: Any,
    ) -> PublicTransform:
        """`PublicTransform.fit` on compressed public rows, as if on whole ones.

        Whitening mixes a share of the mean variance over all p directions into each; the
        coordinates know that of Q only. (1 − s)v + s·v̄ₚ is, up to a factor that the clip quantile
        takes out, (1 − s′)v + s′·v̄_Q with s′/(1 − s′) = s/(1 − s) · v̄ₚ/v̄_Q.
        """
        if 0 < shrinkage < 1:
            odds = shrinkage / (1 - shrinkage) * self.variance_share
            shrinkage = odds / (1 + odds)
        if isinstance(compressed, Coordinates):
            options = {"moments": compressed.moments} | options
        options = {"remember": False} | options  # raw rows are never compared with coordinates
        return PublicTransform.fit(compressed, whiten=whiten, shrinkage=shrinkage, **options)


def _checked(block: np.ndarray) -> Tensor:
    rows = torch.from_numpy(np.array(block))
    check_finite(rows, "embeddings")
    return rows
