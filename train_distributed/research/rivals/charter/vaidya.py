"""Vaidya's cutting planes: minimise a convex function by cutting a polyhedron at its centre.

Salgia et al. 2025, Sec. 4.1, after Vaidya 1996 and Anstreicher 1997. The proofs need κ and γ of
1e-4 and 1e-7, with which thousands of cuts achieve little; ours are a heuristic beyond them. Any
κ > 0 keeps the minimiser of a convex function inside, since the cut lies beyond the queried point.
"""

import math
from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Vector = NDArray[np.float64]

KAPPA = 10.0  # κ: a cut passes the centre at 1/√κ of its ellipsoid's radius
GAMMA = 0.1  # γ: planes with a smaller leverage are dropped
_DECREMENT = 1e-2  # of the volumetric barrier, at an approximate centre
_CENTRE_STEPS = 100


@dataclass(frozen=True, eq=False)
class _Polyhedron:
    """{x: A x >= b}."""

    a: NDArray[np.float64]  # (m, d), unit rows
    b: Vector  # (m,)


@dataclass(frozen=True, eq=False)
class _Barrier:
    """The volumetric barrier V = ½ ln det H at a point inside."""

    value: float  # V
    scaled: NDArray[np.float64]  # (m, d), a_i over its slack
    factor: NDArray[np.float64]  # lower Cholesky factor of H = Σ a_i a_iᵀ / slack_i²
    leverage: Vector  # (m,) s_i = a_iᵀ H⁻¹ a_i / slack_i², with sum d


def cutting_planes(dimension: int, half_width: float) -> Generator[Vector, Vector, None]:
    """Asks for subgradients over the cube [-half_width, half_width]^d, each at the next centre.

    Yields a (d,) point and takes a (d,) subgradient there. It ends when the subgradient is zero, or
    when the polyhedron is too thin for double precision. Only cuts ask; dropping a plane is free.

    Args:
        dimension: d >= 1.
        half_width: half the cube's side, > 0.
    """
    eye = np.eye(dimension)
    body = _Polyhedron(np.concatenate([eye, -eye]), np.full(2 * dimension, -half_width))
    x = np.zeros(dimension)
    while True:
        centred = _centre(body, x)
        if centred is None:
            return
        x, barrier = centred
        weakest = int(np.argmin(barrier.leverage))
        if barrier.leverage[weakest] < GAMMA:
            keep = np.arange(len(body.b)) != weakest
            body = _Polyhedron(body.a[keep], body.b[keep])
            continue
        gradient = yield x
        length = float(np.linalg.norm(gradient))
        if length == 0:
            return
        cut = -gradient / length
        radius = np.linalg.norm(solve_triangular(barrier.factor, cut, lower=True))
        place = cut @ x - float(radius) / math.sqrt(KAPPA)
        body = _Polyhedron(np.vstack([body.a, cut]), np.append(body.b, place))


def _centre(body: _Polyhedron, start: Vector) -> tuple[Vector, _Barrier] | None:
    """An approximate minimiser of the barrier; None where rounding leaves no way down."""
    x, barrier = start, _barrier(body, start)
    if barrier is None:
        return None
    for _ in range(_CENTRE_STEPS):
        gradient = -barrier.scaled.T @ barrier.leverage
        curvature = barrier.scaled.T @ (barrier.leverage[:, None] * barrier.scaled)  # Q
        step = -cho_solve(cho_factor(curvature, lower=True), gradient)
        decrement = float(-gradient @ step)
        if decrement <= _DECREMENT**2:
            return x, barrier
        moved = _descend(body, x, barrier, step, decrement)
        if moved is None:
            return x, barrier
        x, barrier = moved
    return x, barrier


def _descend(
    body: _Polyhedron, x: Vector, barrier: _Barrier, step: Vector, decrement: float
) -> tuple[Vector, _Barrier] | None:
    """Halves the step until it is inside and lowers the barrier enough."""
    length = 1.0
    while length > 1e-10:
        ahead = _barrier(body, x + length * step)
        if ahead is not None and ahead.value <= barrier.value - 0.1 * length * decrement:
            return x + length * step, ahead
        length /= 2
    return None


def _barrier(body: _Polyhedron, x: Vector) -> _Barrier | None:
    slack = body.a @ x - body.b
    if slack.min() <= 0:
        return None
    scaled = body.a / slack[:, None]
    try:
        factor: Vector = np.linalg.cholesky(scaled.T @ scaled).astype(np.float64, copy=False)
    except np.linalg.LinAlgError:
        return None
    leverage = np.square(solve_triangular(factor, scaled.T, lower=True)).sum(0)
    return _Barrier(float(np.log(np.diag(factor)).sum()), scaled, factor, leverage)
