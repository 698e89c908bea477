"""Descent to a point whose gradient is certified to be short, for one user or many at once."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor

from heads.head import Head
from heads.rows import SLACK
from heads.spaces import Part, Space, Weights

ROUNDS = 8  # refinements in the working precision before float64 takes over
CHECK_EVERY = 4  # iterations between two looks at the gradient norm
MOST_ITERATIONS = 10**6  # a round, by the bound alone; condition numbers up to about 10^8
STRIDES = 31, 7  # every so many-th row is a sample: primes, as labels may come in turns
LEAST_SAMPLE = 256  # rows
COARSE = 2.0**-23  # of L: gradients shorter than this are measured in float64
GAIN = 50.0  # by which a round on a sample shrinks the gradient that it knows
ALL = slice(None), slice(None), slice(None)


def gradient_rounding(head: Head, n: int, dim: int, size: float | Tensor) -> float | Tensor:
    """By how much a float64 gradient of n rows may be off.

    A score is a sum of d products, in the Gram matrix (n < d) of d + n, that add up to c times
    `size` in absolute value; the residual passes its error on with the data term's curvature. The
    residual's own rounding and the sum over rows add (n + K + 32)L. All that in units of 2⁻⁵³, and
    twice for what is of second order.

    Args:
        head: L, K and the curvature.
        n: rows.
        dim: d.
        size: ‖W‖ or Σ‖aᵢ‖c; never above 3L/Λ where a solution is accepted.
    """
    products = dim + (n if n < dim else 0) + 2
    of_rows = (n + head.num_classes + 32) * head.lipschitz
    return 2 * 2.0**-53 * (head.curvature * products * size + of_rows)


@dataclass(frozen=True)
class Point:
    """State of a search, in float64 unless stated otherwise."""

    v: Tensor  # (users, K, width)
    scores: Tensor  # (users, K, n), of the type they were taken in
    gradient: Tensor  # V of ∇J
    norms: Tensor  # (users,) upper bounds of ‖∇J‖ where they are certified

    @property
    def certified(self) -> bool:
        """Whether it was taken in float64."""
        return self.scores.dtype == torch.float64


class Problem:
    """The data term in one space; what every iteration needs is made once."""

    def __init__(self, head: Head, x: Tensor, y: Tensor, sizes: Tensor, space: Space) -> None:
        self.head, self.x, self.sizes, self.space = head, x, sizes, space
        self.targets = head.targets(y, x.dtype).mT.contiguous()
        self.dims = tuple(-3 - dim for dim in head.norm_dims)  # of (d, K), seen from (K, d)
        own = torch.arange(x.shape[1], device=x.device) < sizes[:, None]
        self.weight = (own / sizes[:, None])[:, None]  # 1/n on true rows, 0 on padding
        self.narrow = self.weight.to(x.dtype)

    @classmethod
    def of_one(cls, head: Head, x: Tensor, y: Tensor) -> Self:
        """One user of at least as many rows (n, d) as columns, none of them padding."""
        x, y = x.unsqueeze(0), y.unsqueeze(0)
        return cls(head, x, y, x.new_full((1,), x.shape[1], dtype=torch.float64), Weights(x))

    def residual(self, scores: Tensor, part: Part) -> Tensor:
        """∂/∂scores of the mean data loss, in the scores' precision; padding gives zero."""
        weight = self.narrow if scores.dtype == self.narrow.dtype else self.weight
        return self.head.residual(scores, self.targets[part], dim=-2).mul_(weight[part])

    def at(self, v: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Point:
        """J's gradient at V, by default zero; one so spread that Σ‖aᵢ‖c may be > 3L/Λ is no end.

        Taken in another type than float64 it says where to go, and certifies nothing.
        """
        head, space, dims, (users, n, d) = self.head, self.space, self.dims, self.x.shape
        if v is None:
            v = self.x.new_zeros(users, head.num_classes, space.width, dtype=torch.float64)
        scores = v.new_empty(users, head.num_classes, n, dtype=dtype)

        def slope(found: Tensor, part: Part) -> Tensor:
            scores[part] = found
            return self.residual(scores[part], part)

        gradient = space.sweep(v.to(dtype), slope).double() + head.l2_reg * v
        size, left = (space.spread(of, dims).flatten(1).amax(1) for of in (v, gradient))
        norms = space.norm2(gradient, dims).sqrt().flatten(1).amax(1)
        norms = norms + gradient_rounding(head, n, d, size)
        norms = norms.where(left <= 2 * head.lipschitz, math.inf)
        return Point(v, scores, gradient, norms)

    @cached_property
    def smoothness(self) -> Tensor:
        """(users, 1, 1) a user's own β, from the largest eigenvalue of its rows."""
        head, worst = self.head, self.head.smoothness
        own = head.l2_reg + head.curvature / head.clip_norm**2 * self.space.top() / self.sizes
        return own.clamp(max=worst * (1 + SLACK))[:, None, None]


def solve_large(head: Head, x: Tensor, y: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """One user of many rows: first what samples of them say, then, if that is not enough, all.

    A round minimises the sample's J, tilted so that its gradient is J's own where the round starts
    (DANE, Shamir et al. 2014). So it needs one gradient of all rows, and the error shrinks by as
    much as the sample's curvature resembles J's. Where the next gradient is not half as long, a
    larger sample has its turn, and at last all rows. Gradients are taken in the rows' type as far
    down as that tells anything, then in float64, where they are the certificate too.
    `iteration_cap` rests on a start whose gradient is at most L long, as it is at zero.
    """
    problem, cap = Problem.of_one(head, x, y), iteration_cap(head, tau.item())
    dtype, point = x.dtype, problem.at(dtype=x.dtype)
    for stride in STRIDES:
        if len(x) < stride * LEAST_SAMPLE:
            continue
        sample, halved = Problem.of_one(head, x[::stride].contiguous(), y[::stride]), True
        while halved and not (point.certified and point.norms <= tau):
            dtype = torch.float64 if point.norms <= COARSE * head.lipschitz else dtype
            start = replace(point, scores=point.scores[..., ::stride])
            goal = torch.maximum(tau / 2, point.norms / GAIN)
            moved = problem.at(point.v + _correct(sample, start, goal, cap, x.dtype), dtype)
            halved = bool(moved.norms <= point.norms / 2)
            if not halved and dtype != torch.float64:
                dtype, halved = torch.float64, True
            point = moved if moved.norms < point.norms else point
    point = point if point.certified else problem.at(point.v)
    return solve(problem, tau, point if point.norms <= head.lipschitz else problem.at())


def solve(problem: Problem, tau: Tensor, point: Point | None = None) -> tuple[Tensor, Tensor]:
    """Rounds of correction until the float64 gradient norm of every user is at most τ.

    A user that is done is left alone, here and in `_correct`: what it releases is a function of its
    own rows. Were all stopped together, one record could move every user's weights by 2τ/Λ.
    """
    cap = iteration_cap(problem.head, tau.min().item())
    zero = point is None  # then the correction is all, and no precision is lost on it
    point = point or problem.at()
    for attempt in range(ROUNDS + 2):
        done = point.norms <= tau
        if done.all():
            return problem.space.weights(point.v), point.norms
        dtype = problem.x.dtype if attempt < ROUNDS else torch.float64
        exact = dtype if zero and attempt == 0 else torch.float64
        missing = _correct(problem, point, tau / 2, cap, dtype, exact)
        point = problem.at(point.v + missing.where(~done[:, None, None], 0.0))
    raise ArithmeticError(
        f"the solver missed its tolerance {tau.min().item():.3g} within its cap of {cap} "
        "iterations a round; nothing may be released"
    )


def _correct(
    problem: Problem,
    point: Point,
    goal: Tensor,
    cap: int,
    dtype: torch.dtype,
    exact: torch.dtype = torch.float64,
) -> Tensor:
    """Accelerated gradient descent on δ ↦ J(V₀ + δ) from δ = 0, in one precision.

    The gradient is taken as ∇J(V₀) + Λδ + Xᵀ(r(s₀ + Xδ) − r(s₀)), the difference of residuals in
    the precision `exact` of s₀: where that is float64, rounding is relative to the correction and
    not to the solution.
    """
    head, space = problem.head, problem.space
    scores = point.scores.to(exact)
    residual = problem.residual(scores, ALL)
    start, beta, goal2 = (
        of.to(dtype) for of in (point.gradient, problem.smoothness, goal[:, None, None] ** 2)
    )

    def more(moved: Tensor, part: Part) -> Tensor:
        return (problem.residual(scores[part] + moved, part) - residual[part]).to(dtype)

    momentum = (beta / head.l2_reg).sqrt()
    momentum = (momentum - 1) / (momentum + 1)
    delta = ahead = torch.zeros_like(start)
    found, done = torch.zeros_like(start), start.new_zeros(len(start), 1, 1, dtype=torch.bool)
    for iteration in range(cap):
        slope = start + head.l2_reg * ahead + space.sweep(ahead, more)
        if iteration % CHECK_EVERY == CHECK_EVERY - 1:
            norm2 = space.norm2(slope, problem.dims)
            fresh = (norm2 <= goal2).all(-2, keepdim=True) & ~done
            found, done = torch.where(fresh, ahead, found), done | fresh
            if done.all():
                return found.double()
        previous, delta = delta, ahead - slope / beta
        ahead = delta + momentum * (delta - previous)
    return torch.where(done, found, delta).double()


def iteration_cap(head: Head, tau: float) -> int:
    """Iterations after which ‖∇J‖ ≤ τ/2, whatever the data.

    J(W_k) − J* ≤ (1 − κ^{-1/2})^k (J(0) − J* + Λ/2 ‖W*‖²) ≤ (…)^k L²/Λ per composition,
    since ‖∇J(0)‖ ≤ L and ‖W*‖ ≤ L/Λ, and ‖∇J‖² ≤ 2β (J − J*) (Nesterov 2004, Thm 2.2.3).

    Raises:
        ValueError: more of them than anybody waits for; public numbers decide.
    """
    gap = 8 * head.smoothness * head.lipschitz**2 / (head.l2_reg * tau**2)
    rate = -math.log1p(-math.sqrt(head.l2_reg / head.smoothness))
    cap = math.ceil(math.log(max(gap, math.e)) / rate) + CHECK_EVERY
    if cap > MOST_ITERATIONS:
        raise ValueError(
            f"l2_reg must be so large that {MOST_ITERATIONS} iterations are enough, got "
            f"{head.l2_reg} with a smoothness of {head.smoothness:.3g}: {cap} iterations"
        )
    return cap
