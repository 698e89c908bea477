"""The minimiser of a head's objective, with a certificate that its sensitivity rests on."""

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from heads.head import Head
from heads.rows import SLACK, check_counts, check_norms, check_trainable, row_norms

CHUNK = 1 << 21  # numbers of x that are held in float64 at a time
ROUNDS = 8  # refinements in the working precision before float64 takes over
CHECK_EVERY = 4  # iterations between two looks at the gradient norm


@dataclass(frozen=True)
class Solution:
    """Weights whose distance to the minimiser is certified.

    ‖∇J(W)‖ ≤ τ implies ‖W − W*‖ ≤ τ/Λ, as J is Λ-strongly convex. Norms per composition.
    """

    head: Head
    weights: Tensor  # (users, d, K) or (d, K), of x's type
    gradient_norm: Tensor  # (users,) or (), float64, before W is rounded to x's type: private
    tolerance: Tensor  # τ, (users,) or (), float64: public, from n alone

    def sensitivity(self, n: int) -> float:
        """L2 sensitivity of one composition when one of a user's n records is replaced.

        2L/(Λn) + 2τ/Λ, plus 2⁻²³·(L + τ)/Λ in float32: both neighbours' weights are rounded,
        each by 2⁻²⁴ of a norm that is at most (L + τ)/Λ; before that, W = XᵀA is a float64 sum of
        n rows, exact to n 2⁻⁵² of it. τ is the largest one of all users.
        """
        tolerance = self.tolerance.max().item()
        return certified_sensitivity(self.head, n, tolerance, self.weights.dtype)


def certified_sensitivity(head: Head, n: int, tolerance: float, dtype: torch.dtype) -> float:
    """`Solution.sensitivity` of a tolerance τ and a weight type, known before any row is seen."""
    reach = (head.lipschitz + tolerance) / head.l2_reg
    rounding = (torch.finfo(dtype).eps + n * 2.0**-50) * reach
    return head.sensitivity(n) + 2 * tolerance / head.l2_reg + rounding


def default_tolerance(head: Head, n: int) -> float:
    """τ = 10⁻³ L/n: the certificate then costs one thousandth of the sensitivity."""
    return 1e-3 * head.lipschitz / n


def fit_exact(
    head: Head,
    x: Tensor,
    y: Tensor,
    *,
    tolerance: float | None = None,
    counts: Tensor | None = None,
) -> Solution:
    """Minimises J for every user to ‖∇J(W)‖ ≤ τ, certified in float64.

    Accelerated gradient descent (Nesterov 2004, 2.2.11) in the Gram matrix if n < d, on the
    weights otherwise. It runs in x's precision on the correction that is still missing, and the
    gradient at the sum is evaluated in float64 between such rounds. Their number and length are
    capped by the condition number bound (Λ + curvature)/Λ alone, never by the data.

    Args:
        head: loss, Λ and c; it must not have a radius (the minimiser is not projected).
        x: (users, n, d) or (n, d) float, rows ‖x‖ ≤ head.clip_norm, constant column first.
        y: (users, n) or (n,) int64 in [0, K).
        tolerance: τ for every user; None: `default_tolerance` of each user's own n.
        counts: (users,) true rows of each user where `x` is padded at the end.

    Raises:
        ValueError: an argument out of its range, rows longer than the clip norm, a head with a
            radius, a tolerance that float64 cannot certify.
        ArithmeticError: not solved within the cap; nothing may be released then.
    """
    if head.radius is not None:
        raise ValueError(f"head must have radius None for an exact solution, got {head.radius}")
    check_trainable(x, y, head.num_classes)
    counts = check_counts(counts, x)
    given, batched = y.shape, x.ndim == 3
    x, y = (x, y) if batched else (x.unsqueeze(0), y.unsqueeze(0))
    users, n, d = x.shape
    sizes = x.new_full((users,), n, dtype=torch.float64) if counts is None else counts.double()
    tau = 1e-3 * head.lipschitz / sizes if tolerance is None else torch.full_like(sizes, tolerance)
    floor = 64 * torch.finfo(torch.float64).eps * head.lipschitz
    if not floor <= tau.min() < math.inf:
        raise ValueError(
            f"tolerance must be finite and >= {floor:.3g} (float64), got {tau.min().item()}"
        )
    space = _Gram(x) if n < d else _Weights(x)
    check_norms(space.row_norms(), head.clip_norm, given)
    problem = _Problem(head, x, y, sizes, space)
    weights, norms = _solve(problem, tau)
    if batched:
        return Solution(head, weights, norms, tau)
    return Solution(head, weights.squeeze(0), norms.squeeze(0), tau.squeeze(0))


class _Space(Protocol):
    """Where the unknown V lives: V = W, or V = A with W = XᵀA."""

    shape: tuple[int, ...]  # (users, rows of V)

    def row_norms(self) -> Tensor: ...  # (users · n,) float64 ‖x‖
    def scores(self, v: Tensor) -> Tensor: ...  # XW, (users, n, K), in v's precision
    def pull(self, residual: Tensor) -> Tensor: ...  # V of Xᵀ residual, in its precision
    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor: ...  # ‖W‖²
    def top(self) -> Tensor: ...  # (users,) upper bound of the largest eigenvalue of XXᵀ
    def weights(self, v: Tensor) -> Tensor: ...  # W of float64 V, (users, d, K), of x's type


class _Gram:
    """V = A: everything after G = XXᵀ, computed once in float64, is n x n."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.shape = x, tuple(x.shape[:2])
        self.gram = x.new_empty(*x.shape[:2], x.shape[1], dtype=torch.float64)
        for part in _parts(x):
            rows = x[part].double()
            torch.bmm(rows, rows.mT, out=self.gram[part])
        self.narrow = self.gram.to(x.dtype)

    def row_norms(self) -> Tensor:
        return self.gram.diagonal(dim1=1, dim2=2).sqrt().flatten()

    def scores(self, v: Tensor) -> Tensor:
        return (self.narrow if v.dtype == self.narrow.dtype else self.gram) @ v

    def pull(self, residual: Tensor) -> Tensor:
        return residual

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        return (v * self.scores(v)).sum(dims, keepdim=True)

    def top(self) -> Tensor:
        """(Σ λ⁴)^¼ ≥ λ_max, from ‖G²‖_F."""
        return torch.linalg.matrix_norm(self.gram @ self.gram).sqrt()

    def weights(self, v: Tensor) -> Tensor:
        weights = self.x.new_empty(v.shape[0], v.shape[2], self.x.shape[2])
        for part in _parts(self.x):
            weights[part] = v[part].mT @ self.x[part].double()
        return weights.mT


class _Weights:
    """V = W."""

    def __init__(self, x: Tensor) -> None:
        self.x, self.shape = x, (x.shape[0], x.shape[2])

    def row_norms(self) -> Tensor:
        return row_norms(self.x)

    def scores(self, v: Tensor) -> Tensor:
        v = v.mT.contiguous().mT  # each class in one piece: narrow products are 1.7 times as fast
        if v.dtype == self.x.dtype:
            return self.x @ v
        scores = v.new_empty(*self.x.shape[:2], v.shape[2])
        for users, rows in _row_parts(self.x):
            scores[users, rows] = self.x[users, rows].double() @ v[users]
        return scores

    def pull(self, residual: Tensor) -> Tensor:
        if residual.dtype == self.x.dtype:
            return (residual.mT @ self.x).mT
        pulled = residual.new_zeros(self.x.shape[0], residual.shape[2], self.x.shape[2])
        for users, rows in _row_parts(self.x):
            pulled[users] += residual[users, rows].mT @ self.x[users, rows].double()
        return pulled.mT

    def norm2(self, v: Tensor, dims: tuple[int, ...]) -> Tensor:
        return v.square().sum(dims, keepdim=True)

    def top(self) -> Tensor:
        """‖XᵀX‖_F ≥ λ_max, with what float32 may have lost added back."""
        square = self.x.mT @ self.x
        lost = torch.finfo(self.x.dtype).eps * self.x.shape[1]
        return torch.linalg.matrix_norm(square).double() * (1 + lost)

    def weights(self, v: Tensor) -> Tensor:
        return v.to(self.x.dtype)


class _Problem:
    """The data term in one space; what every iteration needs is made once."""

    def __init__(self, head: Head, x: Tensor, y: Tensor, sizes: Tensor, space: _Space) -> None:
        self.head, self.x, self.sizes, self.space = head, x, sizes, space
        self.targets = head.targets(y, x.dtype)
        own = torch.arange(x.shape[1], device=x.device) < sizes[:, None]
        self.weight = (own / sizes[:, None])[..., None]  # 1/n on true rows, 0 on padding
        self.narrow = self.weight.to(x.dtype)

    def residual(self, scores: Tensor) -> Tensor:
        """∂/∂scores of the mean data loss, in the scores' precision; padding gives zero."""
        weight = self.narrow if scores.dtype == self.narrow.dtype else self.weight
        return self.head.residual(scores, self.targets).mul_(weight)


def _solve(problem: _Problem, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Rounds of correction until the float64 gradient norm of every user is at most τ.

    A user that is done is left alone, here and in `_correct`: what it releases is a function of its
    own rows. Were all stopped together, one record could move every user's weights by 2τ/Λ.
    """
    head, space, dims = problem.head, problem.space, problem.head.norm_dims
    worst = head.smoothness
    own = head.l2_reg + (worst - head.l2_reg) / head.clip_norm**2 * space.top() / problem.sizes
    beta = own.clamp(max=worst * (1 + SLACK))[:, None, None]  # a user's own smoothness
    cap = _iteration_cap(head, tau.min().item())
    v = problem.x.new_zeros(*space.shape, head.num_classes, dtype=torch.float64)
    for attempt in range(ROUNDS + 2):
        scores = space.scores(v)
        residual = problem.residual(scores)
        gradient = head.l2_reg * v + space.pull(residual)
        norms = space.norm2(gradient, dims).clamp(min=0).sqrt().flatten(1).amax(1)
        done = norms <= tau
        if done.all():
            return space.weights(v), norms
        dtype = problem.x.dtype if attempt < ROUNDS else torch.float64
        goal = (tau / 2)[:, None, None].to(dtype)
        exact = dtype if attempt == 0 else torch.float64  # from V₀ = 0 the correction is all
        base = (scores.to(exact), residual.to(exact), gradient)
        missing = _correct(problem, base, beta.to(dtype), goal, cap, dtype).double()
        v += missing.where(~done[:, None, None], 0.0)
    raise ArithmeticError(
        f"the solver missed its tolerance {tau.min().item():.3g} within its cap of {cap} "
        "iterations a round; nothing may be released"
    )


def _correct(
    problem: _Problem,
    base: tuple[Tensor, Tensor, Tensor],
    beta: Tensor,
    goal: Tensor,
    cap: int,
    dtype: torch.dtype,
) -> Tensor:
    """Accelerated gradient descent on δ ↦ J(V₀ + δ) from δ = 0, in one precision.

    The gradient is taken as ∇J(V₀) + Λδ + Xᵀ(r(s₀ + Xδ) − r(s₀)), the difference of residuals in
    the precision of s₀: where that is float64, rounding is relative to the correction and not to
    the solution.
    """
    scores, residual, gradient = base
    head, space = problem.head, problem.space
    start = gradient.to(dtype)
    momentum = (beta / head.l2_reg).sqrt()
    momentum = (momentum - 1) / (momentum + 1)
    delta = ahead = torch.zeros_like(start)
    found, done = torch.zeros_like(start), start.new_zeros(len(start), 1, 1, dtype=torch.bool)
    for iteration in range(cap):
        moved = problem.residual(scores + space.scores(ahead)) - residual
        slope = start + head.l2_reg * ahead + space.pull(moved.to(dtype))
        if iteration % CHECK_EVERY == CHECK_EVERY - 1:
            norm2 = space.norm2(slope, head.norm_dims)
            fresh = (norm2 <= goal**2).all(-1, keepdim=True) & ~done
            found, done = torch.where(fresh, ahead, found), done | fresh
            if done.all():
                return found
        previous, delta = delta, ahead - slope / beta
        ahead = delta + momentum * (delta - previous)
    return torch.where(done, found, delta)


def _iteration_cap(head: Head, tau: float) -> int:
    """Iterations after which ‖∇J‖ ≤ τ/2, whatever the data.

    J(W_k) − J* ≤ (1 − κ^{-1/2})^k (J(0) − J* + Λ/2 ‖W*‖²) ≤ (…)^k L²/Λ per composition,
    since ‖∇J(0)‖ ≤ L and ‖W*‖ ≤ L/Λ, and ‖∇J‖² ≤ 2β (J − J*) (Nesterov 2004, Thm 2.2.3).
    """
    gap = 8 * head.smoothness * head.lipschitz**2 / (head.l2_reg * tau**2)
    rate = -math.log1p(-math.sqrt(head.l2_reg / head.smoothness))
    return math.ceil(math.log(max(gap, math.e)) / rate) + CHECK_EVERY


def _parts(x: Tensor) -> list[slice]:
    """Slices of users that fit `CHUNK` numbers, at least one user each."""
    step = max(1, CHUNK // (x.shape[1] * x.shape[2]))
    return [slice(start, start + step) for start in range(0, x.shape[0], step)]


def _row_parts(x: Tensor) -> list[tuple[slice, slice]]:
    """Slices of users and rows that fit `CHUNK` numbers."""
    rows = max(1, CHUNK // x.shape[2])
    return [(u, slice(r, r + rows)) for u in _parts(x) for r in range(0, x.shape[1], rows)]
