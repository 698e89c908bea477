"""The averaging experiment's own tools, against closed forms and an independent solver."""

import numpy as np
import pytest
from scipy.optimize import minimize

from train_distributed.research.experiments import convergence
from train_distributed.research.experiments.convergence import Hinge


@pytest.fixture
def z() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((30, 3)) + np.array([0.5, 1.0, 0.0])


def test_minimum_inside_the_margin_is_the_mean_over_lambda(z):
    l2_reg = float((z**2).sum(1).max())
    w, value = Hinge(z, l2_reg).minimum()
    np.testing.assert_allclose(w, z.mean(0) / l2_reg, atol=1e-9)
    assert value == pytest.approx(1 - (z.mean(0) ** 2).sum() / (2 * l2_reg))


@pytest.mark.parametrize("l2_reg", [0.05, 1.0])
def test_minimum_is_found_where_the_hinge_bends(z, l2_reg):
    _, value = (problem := Hinge(z, l2_reg)).minimum()
    start = np.concatenate([np.zeros(3), np.ones(30)])  # the same as a smooth program with slacks
    found = minimize(
        lambda v: l2_reg / 2 * v[:3] @ v[:3] + v[3:].mean(),
        start,
        method="SLSQP",
        bounds=[(None, None)] * 3 + [(0, None)] * 30,
        constraints={"type": "ineq", "fun": lambda v: v[3:] - 1 + z @ v[:3]},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert value == pytest.approx(found.fun, abs=1e-7)
    assert value <= problem.objective(found.x[:3]) + 1e-9


def test_averaged_subgradient_is_the_plain_recursion(z):
    found = convergence.averaged_subgradient(z[None], 2.0, 0.3, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    repeats = found.shape[1]
    w, total, average = (np.zeros((repeats, 3)) for _ in range(3))
    for t in range(convergence.STEPS[0] + 1):
        total += (t + 1) * w
        average = 2 * total / ((t + 1) * (t + 2))
        for r, row in enumerate(rng.integers(30, size=(repeats, 1))[:, 0]):
            gradient = 2.0 * w[r] - (z[row] if z[row] @ w[r] < 1 else 0)
            w[r] = w[r] - 2 / (2.0 * (t + 1)) * gradient
            w[r] *= min(1, 0.3 / max(np.linalg.norm(w[r]), 1e-300))
    np.testing.assert_allclose(found[0, :, 0], average, atol=1e-12)


def test_two_users_with_a_class_each_average_to_the_global_model():
    rows = [row for row in convergence.two_clouds() if "model" in row]
    models = {row["model"]: np.array(row["weights"]) for row in rows}
    gap = np.linalg.norm(models["average"] - models["global"])
    assert gap < 1e-2 * np.linalg.norm(models["global"])
    assert np.linalg.norm(models["user 1"] - models["user 2"]) > np.linalg.norm(models["global"])
    assert max(map(np.linalg.norm, models.values())) * convergence.CLIP_NORM < 1
