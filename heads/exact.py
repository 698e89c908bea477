"""The minimiser of a head's objective, with a certificate that its sensitivity rests on."""

import math
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from heads.descent import Problem, gradient_rounding, solve, solve_large
from heads.head import Head, check_precision
from heads.rows import check_counts, check_norms, check_trainable
from heads.spaces import Gram, Weights

ALONE = 1 << 21  # numbers from which a user of more rows than columns is solved by itself


@dataclass(frozen=True)
class Solution:
    """Weights whose distance to the minimiser is certified.

    ‖∇J(W)‖ ≤ τ implies ‖W − W*‖ ≤ τ/Λ, as J is Λ-strongly convex. Norms are per composition and
    include all that float64 may have lost (`heads.descent.gradient_rounding`, `Space.norm2`).
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
    """τ = 10⁻³ L/n, for one n or (users,) of them: the sensitivity 2L/(Λn) grows by 10⁻³ of it."""
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
    weights otherwise. It runs in rounds: each refines the weights by a correction in x's precision,
    and then evaluates the gradient at the corrected weights in float64. Their number and length are
    capped by the condition number bound (Λ + curvature)/Λ alone, never by the data. A user of very
    many rows starts with rounds on samples of them.

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
    given, batched = x.shape[:-1], x.ndim == 3
    x, y = (x, y) if batched else (x.unsqueeze(0), y.unsqueeze(0))
    users, n, d = x.shape
    sizes = x.new_full((users,), n, dtype=torch.float64) if counts is None else counts.double()
    tau = default_tolerance(head, sizes) if tolerance is None else torch.full_like(sizes, tolerance)
    _check_tolerance(head, n, d, tau.min().item(), given=tolerance is not None)
    space = Gram(x) if n < d else Weights(x)
    check_norms(space.row_norms(), head.clip_norm, given)
    if n < d or n * d < ALONE:
        weights, norms = solve(Problem(head, x, y, sizes, space), tau)
    else:
        found = [
            solve_large(head, x[user, : int(own)], y[user, : int(own)], tau[user : user + 1])
            for user, own in enumerate(sizes)
        ]
        weights, norms = (torch.cat(part) for part in zip(*found, strict=True))
    if batched:
        return Solution(head, weights, norms, tau)
    return Solution(head, weights.squeeze(0), norms.squeeze(0), tau.squeeze(0))


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
