"""The strongly convex problem of one iteration, solved at all nodes together to a certificate."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from train_distributed.admm.nodes import Nodes
from train_distributed.admm.privacy import CURVATURE


def loss(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, K), mean logistic loss of each node's classifier (P, K, d) on the node's own rows."""
    losses = torch.nn.functional.softplus(-_margins(nodes, weights)) * nodes.mask[..., None]
    return losses.sum(1) / nodes.counts[:, None]


def loss_gradient(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, K, d), gradient of `loss`."""
    slope = -nodes.y * torch.sigmoid(-_margins(nodes, weights))  # y L'
    return slope.transpose(1, 2) @ nodes.x / nodes.counts[:, None, None]


def solve_step(
    nodes: Nodes,
    *,
    loss_weight: float,
    quadratic: Tensor,
    linear: Tensor,
    start: Tensor,
    tolerance: float,
) -> Tensor:
    """argmin_f C loss_p(f) + q_p/2 ‖f‖² + l_p·f at every node and problem.

    Args:
        nodes: the rows.
        loss_weight: C.
        quadratic: (P, 1, 1) q_p > 0.
        linear: (P, K, d) l_p.
        start: (P, K, d).
        tolerance: largest gradient norm of the result, in units of C/B_p.

    Raises:
        ArithmeticError: the tolerance is not met within the proven number of steps.
    """
    return accelerate(
        lambda f: loss_weight * loss_gradient(nodes, f) + quadratic * f + linear,
        start,
        strong=quadratic,
        smooth=quadratic + CURVATURE * loss_weight,
        tolerance=tolerance * loss_weight / nodes.counts[:, None, None],
    )


def consensus_optimum(
    nodes: Nodes, *, loss_weight: float, rho: float, tolerance: float = 1e-10
) -> Tensor:
    """(K, d), argmin_f Σ_p Z_p(f), Z_p = C loss_p + ρ/2 ‖f‖²: what ADMM without noise tends to."""
    count, problems, dimension = nodes.shape

    def gradient(f: Tensor) -> Tensor:
        return loss_weight * loss_gradient(nodes, f.expand(count, -1, -1)).mean(0) + rho * f

    return accelerate(
        gradient,
        torch.zeros(problems, dimension, dtype=torch.float64),
        strong=torch.tensor(rho, dtype=torch.float64),
        smooth=torch.tensor(rho + CURVATURE * loss_weight, dtype=torch.float64),
        tolerance=torch.tensor(tolerance * max(loss_weight, rho), dtype=torch.float64),
    )


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
    limit = 2 + math.ceil(float(condition.max()) ** 0.5 * math.log(18 * max(1.0, ratio) ** 2))
    ahead = here
    for _ in range(limit):
        if bool((slope.norm(dim=-1, keepdim=True) <= tolerance).all()):
            return ahead
        step = ahead - slope / smooth
        ahead = step + momentum * (step - here)
        here, slope = step, gradient(ahead)
    raise ArithmeticError(f"gradient norm {float(slope.norm(dim=-1).max())} after {limit} steps")


def _margins(nodes: Nodes, weights: Tensor) -> Tensor:
    """(P, B, K), y f·x."""
    return nodes.y * (nodes.x @ weights.transpose(1, 2))
