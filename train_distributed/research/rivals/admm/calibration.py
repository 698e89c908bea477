"""Noise that an iteration needs, and the privacy that all iterations together cost.

Neighbours differ in one replaced record of one node. The loss is logistic: |L'| <= 1, L'' <= 1/4,
rows have norm at most 1. Noise has density ∝ exp(-ζ‖e‖).
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from pretrain import check
from train_distributed import accounting

LARGEST_LOSS = 500.0  # e^α of more overflows; composition saves nothing there
CURVATURE = 0.25  # c1, the largest L''
ROUNDING = 2.0**-16  # of a step, in units of C/B: all that float64 may lose, rows' norms included


@dataclass(frozen=True)
class Composed:
    """The guarantee of everything a node ever sends about one of its records."""

    pure: float  # ε at δ = 0
    epsilon: float  # ε at `delta`, never above `pure`
    delta: float


def dual_noise(
    alpha: float, rows: int, loss_weight: float, curvature: float
) -> tuple[float, float]:
    """(ζ, Φ) of dual variable perturbation (Algorithm 2 of Zhang and Zhu).

    ζ = α̂/2, as the proof of Theorem 1 selects: ‖e' - e‖ <= 2. The listing's ζ = α̂ loses up to
    twice α.

    Args:
        alpha: α_p(t) > 0, the guarantee of this iteration.
        rows: B_p.
        loss_weight: C.
        curvature: ρ + 2 η N_p, of the step without its data term.
    """
    scale = rows / loss_weight
    left = alpha - 2 * math.log1p(CURVATURE / (scale * curvature))
    if left > 0:
        return left / 2, 0.0
    return alpha / 4, CURVATURE / (scale * math.expm1(alpha / 4)) - curvature


def primal_noise(alpha: float, rows: int, loss_weight: float, rho: float) -> float:
    """ζ = ρ B α / (2 C) of primal variable perturbation (Algorithm 3).

    ρ alone: the node's own hidden state f - e moves twice as far as f, and the recursion
    Δ' = (2C/B + 2 η N Δ)/(ρ + 2 η N) of f's sensitivity has the fixed point 2C/(B ρ).
    """
    return rho * rows * alpha / (2 * loss_weight)


def charged(alpha: float, tolerance: float) -> float:
    """α plus what a step costs that is solved only to a gradient norm of τ C/B.

    τ = tolerance + ROUNDING: `solver.solve_step` proves that it is no more. Between neighbours the
    two solutions' gradients differ by 2τ C/B more than the 2 C/B that Algorithm 3's proof allows:
    α (1 + τ), exactly. For Algorithm 2 the remainder is a shift of the noise by τ on either side:
    2 ζ τ <= α τ, for every event that does not resolve shifts that small.
    """
    return alpha * (1 + tolerance + ROUNDING)


@cache
def largest_alpha(epsilon: float, delta: float, messages: int, tolerance: float) -> float:
    """The largest α of each of as many messages, to 1e-3, with which all compose to (ε, δ).

    Args:
        epsilon: ε > 0 of everything together.
        delta: 0 < δ < 1.
        messages: T K, iterations and problems.
        tolerance: of every step's solution, see `charged`.
    """
    low, high = epsilon / messages / charged(1.0, tolerance), epsilon
    while high / low > 1 + 1e-3:
        middle = math.sqrt(low * high)
        if compose(charged(middle, tolerance), messages, delta).epsilon <= epsilon:
            low = middle
        else:
            high = middle
    return low


def compose(alpha: float, messages: int, delta: float) -> Composed:
    """All iterations and problems, each α-private given what was sent before it.

    The pure bound is the sum. The other is the exact composition of randomised responses, the worst
    α-private mechanisms (Kairouz, Oh and Viswanath 2015); its losses are multiples of α, so a grid
    of that size rounds none of them. It is left out where its numbers overflow, and where δ is
    below their rounding.

    Args:
        alpha: guarantee of one iteration and problem.
        messages: T K, iterations and problems.
        delta: 0 < δ < 1.

    Examples:
        >>> composed = compose(0.125, 64, 1e-5)
        >>> composed.pure, 4 < composed.epsilon < 5
        (8.0, True)
    """
    check.within("(0, 1)", delta=delta)
    check.at_least(1, messages=messages)
    pure = math.fsum([alpha] * messages)
    asked = accounting.discretised_delta(delta, messages)
    if alpha > LARGEST_LOSS or asked <= 0:
        return Composed(pure, pure, delta)
    pld = check.installed("dp_accounting.pld", "ADMM", package="dp-accounting", extra="baselines")
    parameters = pld.common.DifferentialPrivacyParameters(alpha, 0.0)
    one = pld.privacy_loss_distribution.from_privacy_parameters(parameters, alpha)
    with np.errstate(over="ignore"):  # e^loss at the largest losses: an infinite ε, which is safe
        composed = one.self_compose(messages).get_epsilon_for_delta(asked)
    return Composed(pure, min(pure, composed), delta)
