"""The minimiser of a head's objective, with a certificate that its sensitivity rests on."""

import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from heads.head import Head
from heads.ranges import check_precision
from heads.rows import SLACK, check_counts, check_norms, check_trainable
from heads.spaces import Gram, Space, Weights

ROUNDS = 8  # refinements in the working precision before float64 takes over
CHECK_EVERY = 4  # iterations between two looks at the gradient norm
MOST_ITERATIONS = 10**6  # a round, by the bound alone; condition numbers up to about 10^8


@dataclass(frozen=True)
class Solution:
    """Weights whose distance to the minimiser is certified.

    ‖∇J(W)‖ ≤ τ implies ‖W − W*‖ ≤ τ/Λ, as J is Λ-strongly convex. Norms per composition, and with
    all that float64 may have lost in them (`gradient_rounding`, `Space.norm2`).
    """

    head: Head
    weights: Tensor  # (users, d, K) or (d, K), of x's type
    gradient_norm: Tensor  # (users,) or (), float64, before W is rounded to x's type: private
    tolerance: Tensor  # τ, (users,) or (), float64: public, from n alone

    def sensitivity(self, n: int) -> float:
        """L2 sensitivity of one composition when one of a user's n records is replaced.

        2L/(Λn) + 2τ/Λ, plus 2⁻²³·(L + τ)/Λ in float32: both neighbours' weights are rounded,
        each by 2⁻²⁴ of a norm that is at most (L + τ)/Λ; before that, W = XᵀA is a float64 sum of
        n rows of Σ‖aᵢ‖c ≤ 3L/Λ together, exact to n 2⁻⁵³ of it. τ is the largest one of all users.
        """
        tolerance = self.tolerance.max().item()
        return certified_sensitivity(self.head, n, tolerance, self.weights.dtype)


def certified_sensitivity(head: Head, n: int, tolerance: float, dtype: torch.dtype) -> float:
    """`Solution.sensitivity` of a tolerance τ and a weight type, known before any row is seen."""
    reach = (head.lipschitz + tolerance) / head.l2_reg
    rounding = (torch.finfo(dtype).eps + n * 2.0**-50) * reach
    return head.sensitivity(n) + 2 * tolerance / head.l2_reg + rounding


@overload
def default_tolerance(head: Head, n: int) -> float: ...
@overload
def default_tolerance(head: Head, n: Tensor) -> Tensor: ...
def default_tolerance(head: Head, n: int | Tensor) -> float | Tensor:
    """τ = 10⁻³ L/n, for one n or (users,) of them: a certificate at 10⁻³ of the sensitivity."""
    return 1e-3 * head.lipschitz / n


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

    Examples:
        >>> from heads import SoftmaxHead
        >>> head = SoftmaxHead(num_classes=2, l2_reg=0.1, clip_norm=1.0)
        >>> x = torch.tensor([[0.6, 0.8], [0.6, -0.8]], dtype=torch.float64)
        >>> solution = fit_exact(head, x, torch.tensor([0, 1]))
        >>> (x @ solution.weights).argmax(1)
        tensor([0, 1])
        >>> bool(solution.gradient_norm <= solution.tolerance)
        True
        >>> f"{head.sensitivity(2):.3f} {solution.sensitivity(2):.3f}"  # 2L/(Λn), and as certified
        '14.142 14.156'
    """
    if head.radius is not None:
        raise ValueError(f"head must have radius None for an exact solution, got {head.radius}")
    check_trainable(x, y, head.num_classes)
    check_precision(head, x.dtype)
    counts = check_counts(counts, x)
    given, batched = y.shape, x.ndim == 3
    x, y = (x, y) if batched else (x.unsqueeze(0), y.unsqueeze(0))
    users, n, d = x.shape
    sizes = x.new_full((users,), n, dtype=torch.float64) if counts is None else counts.double()
    tau = default_tolerance(head, sizes) if tolerance is None else torch.full_like(sizes, tolerance)
    _check_tolerance(head, n, d, tau.min().item(), given=tolerance is not None)
    space = Gram(x) if n < d else Weights(x)
    check_norms(space.row_norms(), head.clip_norm, given)
    problem = _Problem(head, x, y, sizes, space)
    weights, norms = _solve(problem, tau)
    if batched:
        return Solution(head, weights, norms, tau)
    return Solution(head, weights.squeeze(0), norms.squeeze(0), tau.squeeze(0))


class _Problem:
    """The data term in one space; what every iteration needs is made once."""

    def __init__(self, head: Head, x: Tensor, y: Tensor, sizes: Tensor, space: Space) -> None:
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
    n, d = problem.x.shape[1:]
    v = problem.x.new_zeros(*space.shape, head.num_classes, dtype=torch.float64)
    for attempt in range(ROUNDS + 2):
        scores = space.scores(v)
        residual = problem.residual(scores)
        gradient = head.l2_reg * v + space.pull(residual)
        size, left = (space.spread(of, dims).flatten(1).amax(1) for of in (v, gradient))
        norms = space.norm2(gradient, dims).sqrt().flatten(1).amax(1)
        norms = norms + gradient_rounding(head, n, d, size)
        done = (norms <= tau) & (left <= 2 * head.lipschitz)  # so Σ‖aᵢ‖c ≤ 3L/Λ
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


def _check_tolerance(head: Head, n: int, dim: int, tau: float, *, given: bool) -> None:
    """Refuses what float64 cannot certify; by default whatever the rows, so that none can tell."""
    floor = 64 * 2.0**-52 * head.lipschitz
    if not given:
        lost = gradient_rounding(head, n, dim, 3 * head.lipschitz / head.l2_reg)
        floor = max(floor, 4 * float(lost))
    if not floor <= tau < math.inf:
        raise ValueError(
            f"tolerance must be finite and >= {floor:.3g}, what float64 certifies with l2_reg "
            f"{head.l2_reg}, clip_norm {head.clip_norm}, {n} rows, {dim} columns, got {tau}"
        )


def _iteration_cap(head: Head, tau: float) -> int:
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
            f"{head.l2_reg} beside a smoothness of {head.smoothness:.3g}: {cap} iterations"
        )
    return cap
