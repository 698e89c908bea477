"""The strongly convex problem of one iteration, solved at all nodes together to a certificate."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from train_distributed.research.rivals.admm.calibration import CURVATURE, ROUNDING
from train_distributed.research.rivals.admm.graph import Nodes

_NEWTON_STEPS = 100
_UNIT = 2.0**-53  # of float64
_LARGEST_CONDITION = 1e8  # √κ is what a step that Newton's method leaves unsolved costs


def loss(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, K), mean logistic loss of each node's classifier (P, K, d) on the node's own rows."""
    losses = torch.nn.functional.softplus(-_margins(nodes, weights)) * nodes.mask[..., None]
    return losses.sum(1) / nodes.sizes[..., 0]


def loss_gradient(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, K, d), gradient of `loss`."""
    slope = -nodes.y * torch.sigmoid(-_margins(nodes, weights))  # y L'
    return slope.transpose(1, 2) @ nodes.x / nodes.sizes


def solve_step(
    nodes: Nodes,
    *,
    loss_weight: float,
    quadratic: Tensor,
    linear: Tensor,
    start: Tensor,
    tolerance: float,
    parts: Tensor | None = None,
) -> Tensor:
    """argmin_f C loss_p(f) + q_p/2 ‖f‖² + l_p·f at every node and problem.

    The true gradient at the result is at most `tolerance` + `privacy.ROUNDING`, in units of C/B_p:
    what float64 may have lost of it is bounded as well, and too much of that is an error.

    Args:
        nodes: the rows.
        loss_weight: C.
        quadratic: (P, 1, 1) or (P, K, 1) q_p > 0.
        linear: (P, K, d) l_p.
        start: (P, K, d).
        tolerance: largest computed gradient norm of the result, in units of C/B_p.
        parts: (P, K, 1) norms of what l_p was added up from; None: ‖l_p‖, nothing cancelled.

    Raises:
        ValueError: a problem too ill-conditioned to be solved in a reasonable number of steps.
        ArithmeticError: the tolerance is not met, or rounding is more than is charged for.
    """
    condition = 1 + float((CURVATURE * loss_weight / quadratic).max())
    if not condition <= _LARGEST_CONDITION:
        raise ValueError(
            f"loss_weight / (4 (rho + 2 eta neighbours)) must be below {_LARGEST_CONDITION:g}, "
            f"got {condition - 1:.3g}"
        )
    parts = linear.norm(dim=-1, keepdim=True) if parts is None else parts

    def check(f: Tensor) -> None:
        lost = float(_lost(nodes, f, parts, loss_weight, quadratic).max())
        if not lost <= ROUNDING:
            raise ArithmeticError(
                f"rounding of a step must be at most {ROUNDING:.3g} C/B, which is charged for, "
                f"got up to {lost:.3g}; nothing is sent"
            )

    def gradient(f: Tensor) -> Tensor:
        return loss_weight * loss_gradient(nodes, f) + quadratic * f + linear

    allowed = tolerance * loss_weight / nodes.sizes
    near = _truncated_newton(nodes, gradient, start, loss_weight, quadratic, allowed)
    check(near)
    found = accelerate(
        gradient,
        near,
        strong=quadratic,
        smooth=quadratic + CURVATURE * loss_weight,
        tolerance=allowed,
    )
    check(found)
    return found


def _lost(nodes: Nodes, f: Tensor, parts: Tensor, loss_weight: float, quadratic: Tensor) -> Tensor:
    """(P, K, 1), what rounding can hide of a step's gradient, in units of C/B.

    With u = 2⁻⁵³: (P + 8) u of every term's norm, P nodes being the most that are added up; and of
    the data term B u for its sum, and for its slopes the (d + 8) u ‖f‖ that a margin is off by,
    times the curvature.
    """
    size = f.norm(dim=-1, keepdim=True)
    added = (len(nodes.counts) + 8) * (quadratic * size + parts) * nodes.sizes / loss_weight
    slopes = CURVATURE * (f.shape[-1] + 8) * size + 8
    return _UNIT * (added + nodes.sizes * (nodes.sizes + slopes))


def accelerate(
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    strong: Tensor,
    smooth: Tensor,
    tolerance: Tensor,
) -> Tensor:
    """Nesterov's method with constant momentum, until every gradient norm is within tolerance.

    From ‖∇(start)‖ = g it needs at most 1 + √κ ln(18 κ² g²/τ²) steps: the gap and the squared
    distance shrink by 1 - 1/√κ a step (Theorem 2.2.3 of Nesterov's lectures), start below
    g²/(2 strong) each, and the extrapolated point is at most three distances away.

    Args:
        gradient: of functions stacked along leading dimensions, each of the last one.
        start: (..., d).
        strong: strong convexity, broadcasting with (..., 1).
        smooth: Lipschitz constant of the gradient.
        tolerance: τ > 0 of the gradient norm.

    Raises:
        ArithmeticError: not reached within that number of steps, by rounding errors.
    """
    condition = smooth / strong
    momentum = (condition.sqrt() - 1) / (condition.sqrt() + 1)
    here, slope = start, gradient(start)
    ratio = float((slope.norm(dim=-1, keepdim=True) * condition / tolerance).max())
    if not ratio < math.inf:
        raise ArithmeticError(f"gradients must be finite, got {float(slope.abs().max())}")
    limit = 2 + math.ceil(float(condition.max()) ** 0.5 * math.log(18 * max(1.0, ratio) ** 2))
    ahead = here
    for _ in range(limit):
        if bool((slope.norm(dim=-1, keepdim=True) <= tolerance).all()):
            return ahead
        step = ahead - slope / smooth
        ahead = step + momentum * (step - here)
        here, slope = step, gradient(ahead)
    raise ArithmeticError(
        f"gradient norm must fall to {float(tolerance.min()):.3g} in {limit} steps, "
        f"got {float(slope.norm(dim=-1).max()):.3g}"
    )


def _truncated_newton(
    nodes: Nodes,
    gradient: Callable[[Tensor], Tensor],
    start: Tensor,
    loss_weight: float,
    quadratic: Tensor,
    tolerance: Tensor,
) -> Tensor:
    """A point that is usually within tolerance, after far fewer gradients than `accelerate` needs.

    It stops at the tolerance, or where a full step no longer lowers every gradient norm; what is
    left to do is for `accelerate`, which always gets there.
    """
    here, slope = start, gradient(start)
    for _ in range(_NEWTON_STEPS):
        norm = slope.norm(dim=-1, keepdim=True)
        if bool((norm <= tolerance).all()):
            break
        share = torch.sigmoid(_margins(nodes, here))
        bend = loss_weight * share * (1 - share) / nodes.sizes

        def hessian(v: Tensor, bend: Tensor = bend) -> Tensor:
            scores = bend * (nodes.x @ v.transpose(1, 2))
            return scores.transpose(1, 2) @ nodes.x + quadratic * v

        ahead = here - _conjugate_gradients(hessian, slope, (norm / 100).maximum(tolerance / 2))
        slope = gradient(ahead)
        if not bool((slope.norm(dim=-1, keepdim=True) <= norm.maximum(tolerance)).all()):
            break
        here = ahead
    return here


def _conjugate_gradients(
    product: Callable[[Tensor], Tensor], right: Tensor, tolerance: Tensor
) -> Tensor:
    """(..., d) solutions of as many systems, each until its residual norm is within tolerance."""
    found, residual, direction = torch.zeros_like(right), right, right
    square = residual.square().sum(-1, keepdim=True)
    for _ in range(right.shape[-1]):
        if bool((square.sqrt() <= tolerance).all()):
            break
        image = product(direction)
        energy = (direction * image).sum(-1, keepdim=True)
        length = torch.where(energy > 0, square / energy, 0.0)  # 0 where it is solved exactly
        found, residual = found + length * direction, residual - length * image
        before, square = square, residual.square().sum(-1, keepdim=True)
        direction = residual + torch.where(before > 0, square / before, 0.0) * direction
    return found


def _margins(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, B, K), y f·x."""
    return nodes.y * (nodes.x @ weights.transpose(1, 2))
