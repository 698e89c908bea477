"""Spaces of the exact solver's unknown: coefficients of the rows, or the weights themselves."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from heads.projection import sum_over
from heads.rows import row_norms

CHUNK = 1 << 21  # numbers of x of whole users that are held in float64 at a time
BLOCK = 1 << 22  # bytes of rows that are used twice while they are in the cache
Part = tuple[slice, slice, slice]  # of (users, K, n)
Slope = Callable[[Tensor, Part], Tensor]  # scores of a part -> what is pulled back through its rows


class Space(Protocol):
    """Space of the unknown V: V = Wᵀ, or V = Aᵀ with W = XᵀA.

    Classes come before rows everywhere: so softmax is fast, and products are.
    """

    width: int  # V is (users, K, width)

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        ...

    def sweep(self, v: Tensor, slope: Slope) -> Tensor:
        """V of Xᵀ slope(XW), of v's shape and precision."""
        ...

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """‖W‖² over dims, and what cancelling down to it may have lost in float64."""
        ...

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Largest size of terms that cancel in W: Σ‖vᵢ‖‖xᵢ‖ ≥ ‖W‖, or ‖W‖."""
        ...

    def top(self) -> Tensor:
        """(users,) upper bound of the largest eigenvalue of XXᵀ."""
        ...

    def weights(self, v: Tensor) -> Tensor:
        """W of float64 V, (users, d, K), of x's type."""
        ...


class Gram:
    """V = A: everything after G = XXᵀ, computed once in float64, is n x n."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.width = x, x.shape[1]
        self.gram = x.new_empty(*x.shape[:2], x.shape[1], dtype=torch.float64)
        for part in _parts(x):
            rows = x[part].double()
            torch.bmm(rows, rows.mT, out=self.gram[part])
        self.narrow = self.gram.to(x.dtype)
        self.lengths = self.gram.diagonal(dim1=1, dim2=2).sqrt()[:, None]

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        return self.lengths.flatten()

    def scores(self, v: Tensor) -> Tensor:
        """(users, K, n) scores of all rows, in v's precision."""
        return v @ (self.narrow if v.dtype == self.narrow.dtype else self.gram)

    def sweep(self, v: Tensor, slope: Slope) -> Tensor:
        """(users, K, n) V of the weights Xᵀ slope(XW): the slope itself."""
        return slope(self.scores(v), (slice(None), slice(None), slice(None)))

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """⟨V, GV⟩ and what cancelling down from (Σ‖vᵢ‖‖xᵢ‖)² may have lost in float64."""
        lost = (sum(self.x.shape[1:]) + v.shape[1] + 8) * 2.0**-52
        found = sum_over(v * self.scores(v), dims).clamp(min=0)
        return found + lost * self.spread(v, dims).square()

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1 or K, 1) Σ‖vᵢ‖‖xᵢ‖: what ‖W‖ would be if no rows pulled against others."""
        lengths = v.abs() if dims == (-1,) else torch.linalg.vector_norm(v, dim=-2, keepdim=True)
        return (lengths * self.lengths.to(v.dtype)).sum(-1, keepdim=True)

    def top(self) -> Tensor:
        """(Σ λ⁴)^¼ ≥ λ_max, from ‖G²‖_F."""
        return torch.linalg.matrix_norm(self.gram @ self.gram).sqrt()

    def weights(self, v: Tensor) -> Tensor:
        """(users, d, K) weights W of float64 V, of x's type."""
        weights = self.x.new_empty(*v.shape[:2], self.x.shape[2])
        for part in _parts(self.x):
            weights[part] = v[part] @ self.x[part].double()
        return weights.mT


class Weights:
    """V = Wᵀ: the weights themselves, for users with at least as many rows as columns."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.width = x, x.shape[2]

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        return row_norms(self.x)

    def sweep(self, v: Tensor, slope: Slope) -> Tensor:
        """(users, K, d) Xᵀ slope(XW): every row is used twice while it is in the cache."""
        pulled, columns, moving = torch.zeros_like(v), v.mT.contiguous(), bool(v.any())
        size = BLOCK // v.itemsize
        buffer = v.new_empty(0 if v.dtype == self.x.dtype else max(size, self.x.shape[2]))
        for users, rows in _row_parts(self.x, size):
            block = self.x[users, rows]
            if len(buffer):
                block = buffer[: block.numel()].view(block.shape).copy_(block)
            scores = block @ columns[users] if moving else v.new_zeros(*block.shape[:2], v.shape[1])
            moved = slope(scores.mT, (users, slice(None), rows))
            pulled[users].baddbmm_(moved, block)
        return pulled

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1 or K, 1) ‖V‖² over dims: a sum of squares loses nothing."""
        return sum_over(v.square(), dims)

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1 or K, 1) ‖W‖ over dims: nothing cancels on the way to it."""
        return self.norm2(v, dims).sqrt()

    def top(self) -> Tensor:
        """‖XᵀX‖_F ≥ λ_max, with what float32 may have lost added back."""
        square = self.x.mT @ self.x
        lost = torch.finfo(self.x.dtype).eps * self.x.shape[1]
        return torch.linalg.matrix_norm(square).double() * (1 + lost)

    def weights(self, v: Tensor) -> Tensor:
        """(users, d, K) weights W of float64 V, of x's type."""
        return v.to(self.x.dtype).mT


def _parts(x: Tensor, size: int = CHUNK) -> list[slice]:
    """Slices of users that fit `size` numbers, at least one user each."""
    step = max(1, size // (x.shape[1] * x.shape[2]))
    return [slice(start, start + step) for start in range(0, x.shape[0], step)]


def _row_parts(x: Tensor, size: int) -> list[tuple[slice, slice]]:
    """Slices of users and rows that fit `size` numbers."""
    rows, users = max(1, size // x.shape[2]), _parts(x, size)
    return [(u, slice(r, r + rows)) for u in users for r in range(0, x.shape[1], rows)]
