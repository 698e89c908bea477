"""Where the exact solver's unknown lives: coefficients of the rows, or the weights themselves."""

from typing import Protocol

import torch
from torch import Tensor

from heads.projection import sum_over
from heads.rows import row_norms

CHUNK = 1 << 21  # numbers of x that are held in float64 at a time


class Space(Protocol):
    """Where the unknown V lives: V = W, or V = A with W = XᵀA."""

    shape: tuple[int, ...]  # (users, rows of V)

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        ...

    def scores(self, v: Tensor) -> Tensor:
        """XW, (users, n, K), in v's precision."""
        ...

    def pull(self, residual: Tensor) -> Tensor:
        """V of Xᵀ residual, in its precision."""
        ...

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """‖W‖² over dims, and what cancelling down to it may have lost in float64."""
        ...

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """What ‖W‖ may have cancelled down from: Σ‖vᵢ‖‖xᵢ‖ ≥ ‖W‖, or ‖W‖."""
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
        self.x, self.shape = x, tuple(x.shape[:2])
        self.gram = x.new_empty(*x.shape[:2], x.shape[1], dtype=torch.float64)
        for part in _parts(x):
            rows = x[part].double()
            torch.bmm(rows, rows.mT, out=self.gram[part])
        self.narrow = self.gram.to(x.dtype)
        self.lengths = self.gram.diagonal(dim1=1, dim2=2).sqrt()[..., None]

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        return self.lengths.flatten()

    def scores(self, v: Tensor) -> Tensor:
        """(users, n, K) scores XW of all rows, in v's precision."""
        return (self.narrow if v.dtype == self.narrow.dtype else self.gram) @ v

    def pull(self, residual: Tensor) -> Tensor:
        """(users, *, K) V of the weights Xᵀ residual, in the residual's precision."""
        return residual

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """⟨V, GV⟩ and what cancelling down from (Σ‖vᵢ‖‖xᵢ‖)² may have lost in float64."""
        lost = (sum(self.x.shape[1:]) + v.shape[2] + 8) * 2.0**-52
        found = sum_over(v * self.scores(v), dims).clamp(min=0)
        return found + lost * self.spread(v, dims).square()

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1, 1 or K) Σ‖vᵢ‖‖xᵢ‖: what ‖W‖ would be if no rows pulled against others."""
        lengths = v.abs() if dims == (-2,) else torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        return (lengths * self.lengths.to(v.dtype)).sum(-2, keepdim=True)

    def top(self) -> Tensor:
        """(Σ λ⁴)^¼ ≥ λ_max, from ‖G²‖_F."""
        return torch.linalg.matrix_norm(self.gram @ self.gram).sqrt()

    def weights(self, v: Tensor) -> Tensor:
        """(users, d, K) weights W of float64 V, of x's type."""
        weights = self.x.new_empty(v.shape[0], v.shape[2], self.x.shape[2])
        for part in _parts(self.x):
            weights[part] = v[part].mT @ self.x[part].double()
        return weights.mT


class Weights:
    """V = W: the weights themselves, for users with at least as many rows as columns."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.shape = x, (x.shape[0], x.shape[2])

    def row_norms(self) -> Tensor:
        """(users · n,) float64 norms ‖x‖ of all rows, one user after the other."""
        return row_norms(self.x)

    def scores(self, v: Tensor) -> Tensor:
        """(users, n, K) scores XW of all rows, in v's precision."""
        v = v.mT.contiguous().mT  # each class in one piece: narrow products are 1.7 times as fast
        if v.dtype == self.x.dtype:
            return self.x @ v
        scores = v.new_empty(*self.x.shape[:2], v.shape[2])
        for users, rows in _row_parts(self.x):
            scores[users, rows] = self.x[users, rows].double() @ v[users]
        return scores

    def pull(self, residual: Tensor) -> Tensor:
        """(users, *, K) V of the weights Xᵀ residual, in the residual's precision."""
        if residual.dtype == self.x.dtype:
            return (residual.mT @ self.x).mT
        pulled = residual.new_zeros(self.x.shape[0], residual.shape[2], self.x.shape[2])
        for users, rows in _row_parts(self.x):
            pulled[users] += residual[users, rows].mT @ self.x[users, rows].double()
        return pulled.mT

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1, 1 or K) ‖V‖² over dims: a sum of squares loses nothing."""
        return sum_over(v.square(), dims)

    def spread(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        """(users, 1, 1 or K) ‖W‖ over dims: nothing cancels on the way to it."""
        return self.norm2(v, dims).sqrt()

    def top(self) -> Tensor:
        """‖XᵀX‖_F ≥ λ_max, with what float32 may have lost added back."""
        square = self.x.mT @ self.x
        lost = torch.finfo(self.x.dtype).eps * self.x.shape[1]
        return torch.linalg.matrix_norm(square).double() * (1 + lost)

    def weights(self, v: Tensor) -> Tensor:
        """(users, d, K) weights W of float64 V, of x's type."""
        return v.to(self.x.dtype)


def _parts(x: Tensor) -> list[slice]:
    """Slices of users that fit `CHUNK` numbers, at least one user each."""
    step = max(1, CHUNK // (x.shape[1] * x.shape[2]))
    return [slice(start, start + step) for start in range(0, x.shape[0], step)]


def _row_parts(x: Tensor) -> list[tuple[slice, slice]]:
    """Slices of users and rows that fit `CHUNK` numbers."""
    rows = max(1, CHUNK // x.shape[2])
    return [(u, slice(r, r + rows)) for u in _parts(x) for r in range(0, x.shape[1], rows)]
