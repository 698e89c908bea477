"""From an embedding to its row [a, clip(x)] of norm at most c, with public numbers only."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from embed.centre import about
from embed.clip import add_constant_and_clip, check_bounds, check_finite
from embed.project import in_blocks, project
from pretrain import check

# Bounds of what divides features, as anybody may have made a transform: normal float32 numbers; and
# about a centre lengths of which float32's rounding of a row, 2⁻²⁴, is a sixteenth at most.
SCALES = "[2^-126, 2^127]"
LENGTHS = "[2^-20, 2^20]"


@dataclass(frozen=True, kw_only=True)
class RowMap:
    """x -> [a, clip(Pᵀ(x - m)/s, r)], r = sqrt(c² - a²); about a `centre` clipped once more.

    About a centre of k numbers rows have the first k of q features alone, or with `discriminants` D
    the k projections Dᵀx of all features x.

    Raises:
        ValueError: at construction, for a number that is not finite, a scale or the `length` that
            rows about a centre are divided by out of range, another precision than float32, or of
            the centre float64, or a centre longer than r.
    """

    mean: Tensor  # (p,) m
    basis: Tensor  # (p, q) P
    scale: Tensor  # (q,) s: divides; whitening and the clip quantile together
    clip_norm: float  # c
    constant: float  # a
    centre: Tensor | None = None  # (k,) float64 mean of rows, from a noised sum; None: not taken
    length: float = 1.0  # by which features about the centre are divided
    discriminants: Tensor | None = None  # (q, k) float64 D; None: not taken, or no centre yet

    def __post_init__(self) -> None:
        check_bounds(self.clip_norm, self.constant)
        dtypes = {"mean": torch.float32, "basis": torch.float32, "scale": torch.float32}
        for name in ("centre", "discriminants"):
            if getattr(self, name) is not None:
                dtypes[name] = torch.float64
        for name, dtype in dtypes.items():
            values = getattr(self, name)
            if values.dtype != dtype:
                raise ValueError(f"{name} must be {str(dtype)[6:]}, got {values.dtype}")
            if not values.isfinite().all():
                raise ValueError(f"{name} must be finite, got NaN or infinity")
        for least_or_largest in (self.scale.min(), self.scale.max()):
            check.within(SCALES, scale=float(least_or_largest))
        if self.centre is not None:
            check.shape(("k",), centre=self.centre)
            check.within(f"[1, {self.basis.shape[1]}]", centre_numbers=len(self.centre))
            check.within(f"[0, {self.reach}]", centre_norm=float(self.centre.norm()))
            check.within(LENGTHS, length=self.length)
        if self.discriminants is not None:
            k = "k" if self.centre is None else len(self.centre)
            check.shape((self.basis.shape[1], k), discriminants=self.discriminants)
            check.within("[0, 1]", largest_of_discriminants=float(self.discriminants.abs().max()))

    @property
    def dim(self) -> int:
        """Columns of a transformed row, the constant included."""
        return (self.basis.shape[1] if self.centre is None else len(self.centre)) + 1

    @property
    def reach(self) -> float:
        """r = sqrt(c² - a²), the largest length of a row's features."""
        return math.sqrt(self.clip_norm**2 - self.constant**2)

    def __call__(self, x: Tensor | np.ndarray, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Transforms (n, p) embeddings to (n, dim) rows of norm at most `clip_norm`.

        Raises:
            ValueError: another number of columns, or a row that is not finite.
        """
        check.shape(("n", len(self.mean)), x=x)

        def rows(block: Tensor, start: int) -> Tensor:
            return self.clipped(self.features(block, first_row=start), dtype)

        return in_blocks(x, rows, torch.empty(len(x), self.dim, dtype=dtype))

    def features(self, x: Tensor, *, first_row: int = 0) -> Tensor:
        """Pᵀ(x - m)/s before clipping, (n, q) float64, finite.

        `first_row` is the number of the first row of x, for errors. `embed.project.project` says
        what becomes of features that no float can hold.
        """
        check_finite(x, "x", first_row)
        return project(x, self.mean, self.basis if self._rotates else None, self.scale)

    def clipped(self, features: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
        """(n, dim) rows of (n, q) features."""
        rows = add_constant_and_clip(features, self.clip_norm, self.constant, dtype=dtype)
        return self.about_centre(rows)

    def about_centre(self, rows: Tensor) -> Tensor:
        """(n, dim) rows of this transform from the (n, q + 1) of the one without its centre."""
        if self.centre is None:
            return rows
        bounds = self.clip_norm, self.constant
        return about(rows, self.centre, self.length, *bounds, self.discriminants)

    @property
    def taken(self) -> Tensor:
        """(q, k) float64 matrix that projects features x to those about a centre, as Dᵀx."""
        if self.discriminants is not None:
            return self.discriminants
        return torch.eye(self.basis.shape[1], self.dim - 1, dtype=torch.float64)

    @cached_property
    def _rotates(self) -> bool:
        p, q = self.basis.shape
        return p != q or not torch.equal(self.basis, torch.eye(p, dtype=self.basis.dtype))
