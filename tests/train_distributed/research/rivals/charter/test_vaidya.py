"""Vaidya's method against SciPy and on functions with a known minimum."""

import numpy as np
import pytest
import scipy.optimize

from train_distributed.research.rivals.charter import vaidya


def logistic_problem(dimension, seed):
    """A regularised logistic loss, its gradient and SciPy's least value."""
    draw = np.random.default_rng(seed)
    x = draw.normal(size=(200, dimension)) / np.sqrt(dimension)
    y = np.sign(x @ draw.normal(size=dimension) + 0.3 * draw.normal(size=200))

    def value(w):
        return np.logaddexp(0, -y * (x @ w)).mean() + 0.005 * w @ w

    def gradient(w):
        return -(y / (1 + np.exp(y * (x @ w)))) @ x / len(y) + 0.01 * w

    options = {"ftol": 1e-17, "gtol": 1e-12, "maxiter": 10_000}
    found = scipy.optimize.minimize(
        value, np.zeros(dimension), jac=gradient, method="L-BFGS-B", options=options
    )
    return value, gradient, found.fun


MANY = [(20, 15), (27, 16), (35, 17), (42, 18), (50, 19)]


@pytest.mark.parametrize(
    ("dimension", "seed"),
    [
        *((2 + n % 10, n) for n in range(0, 15, 2)),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in MANY),
    ],
)
def test_reaches_scipys_optimum(dimension, seed):
    value, gradient, lowest = logistic_problem(dimension, seed)
    planes = vaidya.cutting_planes(dimension, 20.0)
    x, found = next(planes), np.inf
    for _ in range(20 * dimension + 40):
        found = min(found, value(x))
        if found <= lowest + 1e-6:
            break
        x = planes.send(gradient(x))
    assert found <= lowest + 1e-6


def test_no_cut_removes_the_minimiser():
    """Of max_i a_i·(x - x*), whose least value is 0 as the a_i have mean 0."""
    draw = np.random.default_rng(1)
    slopes = draw.normal(size=(15, 5))
    slopes -= slopes.mean(0)
    centre = draw.uniform(-0.5, 0.5, size=5)
    planes = vaidya.cutting_planes(5, 1.0)
    x = next(planes)
    for _ in range(60):
        slope = slopes[np.argmax(slopes @ (x - centre))]
        assert -slope @ centre >= -slope @ x - 1e-12  # the minimiser is on the side that is kept
        assert np.abs(x).max() < 1
        x = planes.send(slope)
    assert (slopes @ (x - centre)).max() < (slopes @ -centre).max()


def test_the_barrier_and_its_leverages():
    draw = np.random.default_rng(0)
    body = vaidya._Polyhedron(draw.normal(size=(12, 4)), -np.ones(12))
    x = 0.05 * draw.normal(size=4)
    barrier = vaidya._barrier(body, x)
    assert barrier is not None
    slack = body.a @ x - body.b
    hessian = sum(np.outer(a, a) / s**2 for a, s in zip(body.a, slack, strict=True))
    leverage = [a @ np.linalg.solve(hessian, a) / s**2 for a, s in zip(body.a, slack, strict=True)]
    assert np.allclose(barrier.leverage, leverage)
    assert barrier.leverage.sum() == pytest.approx(4)
    assert barrier.value == pytest.approx(np.linalg.slogdet(hessian)[1] / 2)
    # Its gradient is -Σ s_i a_i / slack_i.
    gradient = -(barrier.leverage / slack) @ body.a
    for axis, unit in enumerate(np.eye(4)):
        ahead, behind = (vaidya._barrier(body, x + step * unit) for step in (1e-5, -1e-5))
        assert ahead is not None
        assert behind is not None
        assert (ahead.value - behind.value) / 2e-5 == pytest.approx(gradient[axis], rel=1e-4)
    assert vaidya._barrier(body, np.full(4, 1e3)) is None


def test_a_zero_gradient_ends_the_search():
    planes = vaidya.cutting_planes(3, 2.0)
    next(planes)
    with pytest.raises(StopIteration):
        planes.send(np.zeros(3))
