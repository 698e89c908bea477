"""SGD and projection at any scale: weights in the ball, movement as stated, or a named refusal.

pytest -n 0 tests/heads/test_extreme_sgd.py -m slow
"""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from heads import HuberSVMHead, LogisticHead, SoftmaxHead, fit_sgd, project_ball, sgd_sensitivity

NAMED = re.compile(
    r"^(l2_reg|clip_norm|radius|relaxation|epochs|lipschitz / l2_reg|l2_reg \+ curvature) must "
)
DOUBLE = 1 + 1e-13  # rounding of the comparison itself
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def holds(dice: Any, dtype: torch.dtype) -> int:
    """Trains one draw; the number of pairs that were looked at, 0 where it was refused by name."""
    try:
        head = dice.head()
        case, steps = dice.rows(head, dtype), dice.steps()
        n, d = case.x.shape[2:]
        method = ("auto", "gram", "primal")[dice.whole(0, 2)]
        stated = sgd_sensitivity(head, n, d, **steps, dtype=dtype, method=method)
        smoothness = head.smoothness * dice.scale(0, 12) if dice.often(0.2) else None
        x, y = case.x.flatten(0, 1), case.y.flatten(0, 1)
        weights = fit_sgd(head, x, y, **steps, method=method, smoothness=smoothness)
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return 0
    assert weights.isfinite().all()
    about = f"{head}, n {n}, d {d}, {steps}, {method}, smoothness {smoothness}"
    assert case.moved(weights) <= stated * DOUBLE, about
    if head.radius is not None:
        assert case.largest(weights) <= head.radius, about
    return case.pairs


@each_dtype
@pytest.mark.parametrize("seeds", [150, pytest.param(4000, marks=pytest.mark.slow)])
def test_sgd_at_any_scale(dice: Callable[[int], Any], dtype: torch.dtype, seeds: int) -> None:
    done = [holds(dice(seed), dtype) for seed in range(seeds)]
    assert np.count_nonzero(done) >= (0.85 if dtype == torch.float64 else 0.45) * seeds


@each_dtype
def test_rounding_exceeds_the_exact_sensitivity_and_is_charged(dtype: torch.dtype) -> None:
    """A record that attains 2L/(Λn), its antipode beside it: some computed pair lies above."""
    above = 0
    for l2_reg in np.geomspace(1, 100, 60):
        head = HuberSVMHead(num_classes=2, l2_reg=float(l2_reg), clip_norm=1.0)
        x, y = torch.zeros(2, 5, 6, dtype=dtype), torch.zeros(2, 5, dtype=torch.int64)
        x[0, -1, 0], x[1, -1, 0] = 1, -1
        weights = fit_sgd(head, x, y, epochs=65, batch_size=1, method="gram").double()
        moved = float(torch.linalg.vector_norm(weights[0] - weights[1], dim=0).max())
        above += moved > head.sensitivity(5) * (1 + torch.finfo(dtype).eps)
        stated = sgd_sensitivity(head, 5, 6, epochs=65, batch_size=1, dtype=dtype, method="gram")
        assert moved <= stated
    assert above


@each_dtype
@pytest.mark.parametrize("method", ["gram", "primal"])
@pytest.mark.parametrize(
    ("kind", "radius", "epochs"),
    [(SoftmaxHead, 8.857e-5, 500), (HuberSVMHead, 1.215e-4, 500), (LogisticHead, 1.824e-5, 150)],
)
def test_a_radius_far_below_the_reach(kind, radius, epochs, method, dtype) -> None:
    """Equal rows with labels in turn: every step leaves the ball, and the scale shrinks by 10⁴."""
    head = kind(num_classes=2, l2_reg=1.0, clip_norm=1.0013, radius=radius)
    x = torch.full((49, 401), 0.05, dtype=dtype)
    weights = fit_sgd(head, x, torch.arange(49) % 2, epochs=epochs, batch_size=10, method=method)
    exact = np.square(weights.numpy().astype(np.longdouble)).sum(head.norm_dims)
    assert (np.sqrt(exact) <= radius).all()
    assert np.sqrt(exact).max() >= 0.999 * radius


def test_no_step_is_left_of_a_shrink_to_zero() -> None:
    """Λ so far above the curvature that 1 − αΛ is zero: the scale restarts, nothing divides."""
    head = SoftmaxHead(num_classes=2, l2_reg=1e12, clip_norm=1e-6)
    x = torch.full((3, 9), 3e-7, dtype=torch.float64)
    y = torch.tensor([0, 1, 1])
    found = [fit_sgd(head, x, y, epochs=3, batch_size=2, method=m) for m in ("gram", "primal")]
    assert found[1].norm() > 0
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0)


def ball(dice: Any, dtype: torch.dtype) -> int:
    """Projects one draw of weights at scales that float64 squares cannot hold."""
    low, high = (-300, 300) if dtype == torch.float64 else (-42, 36)
    shape = dice.whole(1, 4), dice.whole(1, 40), dice.whole(1, 6)
    sizes = 10.0 ** dice.draw.uniform(low, high, (shape[0], 1, 1))
    weights = torch.from_numpy(dice.draw.standard_normal(shape) * sizes).to(dtype)
    radius = dice.scale(low, high)
    dims = ((-2, -1), (-2,))[dice.whole(0, 1)]
    try:
        found = project_ball(weights, radius, dims)
    except ValueError as refusal:
        if radius >= torch.finfo(dtype).tiny / torch.finfo(dtype).eps:
            raise refusal
        return 0
    before, after = (
        np.sqrt(np.square(w.numpy().astype(np.longdouble)).sum(dims)) for w in (weights, found)
    )
    assert (after <= radius).all()
    aim = np.minimum(before, radius)
    assert (after >= aim * (1 - 1e-5 if dtype == torch.float32 else 1 - 1e-13)).all()
    return shape[0]


@each_dtype
@pytest.mark.parametrize("seeds", [300, pytest.param(6000, marks=pytest.mark.slow)])
def test_projection_at_any_scale(dice, dtype, seeds) -> None:
    assert np.count_nonzero([ball(dice(seed), dtype) for seed in range(seeds)]) > 0.6 * seeds


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_without_a_norm_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="weights must have finite norms"):
        project_ball(torch.tensor([[bad], [1.0]]), 1.0)


F64, F32 = torch.float64, torch.float32


@pytest.mark.parametrize(
    ("dtype", "change", "message"),
    [
        (F64, {"l2_reg": 1e-300}, r"l2_reg must lie in \[1e-60, 1e\+60\]"),
        (F64, {"clip_norm": 1e200}, r"clip_norm must lie in \[1e-60, 1e\+60\]"),
        (F64, {"radius": 1e-61}, r"radius must lie in \[1e-60, 1e\+60\]"),
        (F64, {"radius": 1e-9}, "radius must be larger beside lipschitz / l2_reg"),
        (F32, {"l2_reg": 1e-20}, r"lipschitz / l2_reg must lie in \[1e-12, .* in torch.float32"),
        (F32, {"clip_norm": 1e-13}, r"clip_norm must lie in \[1e-12, .* in torch.float32"),
        (F32, {"radius": 1e-13}, r"radius must lie in \[1e-12, .* in torch.float32"),
        (F32, {"l2_reg": 1e9, "clip_norm": 1e14}, r"l2_reg \+ curvature must be <= 1e\+24"),
    ],
)
def test_what_cannot_be_proven_is_refused(dtype, change, message) -> None:
    x, y = torch.zeros(4, 9, dtype=dtype), torch.arange(4) % 2

    def fit() -> None:
        head = LogisticHead(num_classes=2, **{"l2_reg": 1.0, "clip_norm": 1.0, **change})
        fit_sgd(head, x, y, epochs=1, batch_size=2, method="gram")

    with pytest.raises(ValueError, match=message):
        fit()


def test_too_many_steps_are_refused() -> None:
    head = SoftmaxHead(num_classes=2, l2_reg=1.0, clip_norm=1.0)
    with pytest.raises(ValueError, match=r"epochs must be so few that .* epochs 100"):
        sgd_sensitivity(head, 50, 10, epochs=10**14, batch_size=20)


BOTH = pytest.mark.parametrize("dims", [(-2, -1), (-2,)])


@BOTH
def test_no_point_of_the_ball_is_nearer(dims: tuple[int, ...]) -> None:
    """⟨W − ΠW, V − ΠW⟩ ≤ 0 for every V in the ball characterises the projection."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(200, 5, 4, generator=generator, dtype=torch.float64)
    others = project_ball(
        torch.randn(200, 5, 4, generator=generator, dtype=torch.float64), 1.3, dims
    )
    nearest = project_ball(weights, 1.3, dims)
    assert ((weights - nearest) * (others - nearest)).sum(dims).max() <= 1e-12


@BOTH
def test_never_expands(dims: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 500, 5, 4, generator=generator, dtype=torch.float64).unbind()
    second = torch.where(torch.arange(500)[:, None, None] % 2 == 0, first + 1e-3 * second, second)
    before = (first - second).square().sum(dims)
    after = (project_ball(first, 0.9, dims) - project_ball(second, 0.9, dims)).square().sum(dims)
    assert (after <= before * (1 + 1e-12)).all()
