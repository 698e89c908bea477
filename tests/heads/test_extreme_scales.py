"""Both solvers and the projection at any scale: movement as stated, or a named refusal."""

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import (
    Head,
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    fit_exact,
    fit_sgd,
    project_ball,
    sgd_sensitivity,
)
from heads.spaces import Gram

KINDS = (SoftmaxHead, HuberSVMHead, LogisticHead)
NAMED = re.compile(
    r"^(l2_reg|clip_norm|radius|relaxation|epochs|tolerance|lipschitz / l2_reg"
    r"|l2_reg \+ curvature) must "
)
DOUBLE = 1 + 1e-13  # rounding of the comparison itself
SOLVABLE, HOPELESS = (-12, 3.5), (9, 24)  # powers of ten of curvature / Λ; between them is slow
each_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])


def moved(head: Head, weights: Tensor) -> float:
    """The largest movement of a composition between users of the first half and of the second."""
    first, second = weights.double().chunk(2)
    return float(torch.linalg.vector_norm(first - second, dim=head.norm_dims).max())


class Dice:
    """Explicitly seeded draws."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def scale(self, low: float = -12, high: float = 12) -> float:
        return 10.0 ** self.draw.uniform(low, high)

    def often(self, share: float) -> bool:
        return bool(self.draw.random() < share)

    def whole(self, low: int, high: int) -> int:
        return int(self.draw.integers(low, high + 1))

    def head(self, condition: tuple[float, float] | None = None, **fixed: Any) -> Head:
        """Any head; with `condition`, curvature / Λ between these powers of ten."""
        kind = KINDS[self.whole(0, 2)]
        options: dict[str, Any] = {"num_classes": self.whole(2, 4)}
        options["clip_norm"] = 1.0 if self.often(0.4) else self.scale()
        if kind is HuberSVMHead and self.often(0.3):
            options["relaxation"] = self.scale() if condition is None else self.scale(-2, 2)
        if condition is None:
            options["l2_reg"] = self.scale() if self.often(0.5) else self.scale(-3, 3)
        else:
            curvature = kind(**options, l2_reg=1.0).curvature
            options["l2_reg"] = curvature / self.scale(*condition)
        head = kind(**options)
        reach = head.lipschitz / head.l2_reg
        radius = self.scale() if self.often(0.3) else reach * self.scale(-6, 0.3)
        return kind(**{**options, "radius": None if self.often(0.2) else radius, **fixed})

    def rows(self, head: Head, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Rows (2 · pairs, n, d) and labels of neighbours; the record that differs is anywhere."""
        n, d = self.whole(1, 12), self.whole(2, 16)
        if self.often(0.5):
            d += 16  # the Gram matrix is smaller
        first = [self._others(n, d, head.num_classes) for _ in range(12)]
        x, y = (np.stack(part) for part in zip(*first, strict=True))
        x, y = np.stack([x, x]), np.stack([y, y])
        for pair in range(len(first)):
            self._replace(x[:, pair], y[:, pair], head.num_classes)
        short = 1e-6 if dtype == torch.float32 else 2.0**-40
        rows = torch.from_numpy(x * (head.clip_norm * (1 - short))).to(dtype)
        return rows.flatten(0, 1), torch.from_numpy(y).flatten(0, 1)

    def _others(self, n: int, d: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of length 1 or less, and labels."""
        equal = np.ones((n, d)) / math.sqrt(d)
        random = self.draw.standard_normal((n, d))
        random /= np.linalg.norm(random, axis=1, keepdims=True)
        signs = np.where(np.arange(n) % 2, 1.0, -1.0)[:, None]
        tiny = random * 10.0 ** self.draw.uniform(-320, 0, (n, 1))  # denormal numbers too
        kinds = (equal, equal * signs, random, tiny, np.zeros((n, d)), np.eye(n, d))
        labels = (np.arange(n) % classes, np.zeros(n, int), self.draw.integers(0, classes, n))
        return kinds[self.whole(0, 5)], labels[self.whole(0, 2)].astype(np.int64)

    def _replace(self, x: np.ndarray, y: np.ndarray, classes: int) -> None:
        """Makes (2, n, d) rows and (2, n) labels differ in one record."""
        place = self.whole(0, x.shape[1] - 1)
        row = np.zeros(x.shape[2])
        row[self.whole(0, len(row) - 1)] = 1.0
        if self.often(0.5):
            x[0, place] = x[1, place] = row
        change = self.whole(0, 3)
        if change != 1:
            x[1, place] = (-x[0, place], None, row, -x[0, place])[change]
        if change in (1, 3):
            y[1, place] = (y[0, place] + 1) % classes


def sgd_holds(dice: Dice, dtype: torch.dtype) -> int:
    """Trains one draw; the number of users, 0 where it was refused by name."""
    try:
        head = dice.head()
        x, y = dice.rows(head, dtype)
        steps: dict[str, Any] = {"epochs": int(dice.scale(0, 1.6)), "batch_size": dice.whole(1, 10)}
        n, d = x.shape[1:]
        method = ("auto", "gram", "primal")[dice.whole(0, 2)]
        stated = sgd_sensitivity(head, n, d, **steps, dtype=dtype, method=method)
        smoothness = head.smoothness * dice.scale(0, 12) if dice.often(0.2) else None
        weights = fit_sgd(head, x, y, **steps, method=method, smoothness=smoothness)
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return 0
    assert weights.isfinite().all()
    about = f"{head}, n {n}, d {d}, {steps}, {method}, smoothness {smoothness}"
    assert moved(head, weights) <= stated * DOUBLE, about
    if head.radius is not None:  # in more digits than float64 has
        squares = np.square(weights.numpy().astype(np.longdouble)).sum(head.norm_dims)
        assert np.sqrt(squares).max() <= head.radius, about
    return len(x)


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


def exact_gradient(head: Head, weights: Tensor, x: Tensor, y: Tensor) -> np.ndarray:
    """(users,) largest ‖∇J(W)‖ of a composition, transcribed, in numpy's longest floats."""
    w, rows = weights.numpy().astype(np.longdouble), x.numpy().astype(np.longdouble)
    hot = y.numpy()[..., None] == np.arange(head.num_classes)
    scores = rows @ w
    if isinstance(head, SoftmaxHead):
        shifted = np.exp(scores - scores.max(-1, keepdims=True))
        slope = shifted / shifted.sum(-1, keepdims=True) - hot
    else:
        sign = np.where(hot, 1, -1)
        z = sign * scores
        if isinstance(head, HuberSVMHead):
            h = np.longdouble(head.relaxation)
            slope = -sign * np.clip((1 + h - z) / (2 * h), 0, 1)
        else:
            slope = -sign / (1 + np.exp(np.minimum(z, 11_000)))
    gradient = head.l2_reg * w + rows.swapaxes(1, 2) @ slope / x.shape[1]
    return np.sqrt(np.square(gradient).sum(head.norm_dims, keepdims=True)).max((1, 2))


def exact_holds(dice: Dice, dtype: torch.dtype) -> int:
    """Solves one draw; the number of users, 0 where it was refused by name."""
    try:
        head = dice.head(SOLVABLE, radius=None)
        x, y = dice.rows(head, dtype)
        tolerance = head.lipschitz * dice.scale(-8, 1) if dice.often(0.3) else None
        solution = fit_exact(head, x, y, tolerance=tolerance)
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return 0
    n = x.shape[1]
    about = f"{head}, {tuple(x.shape)}, tolerance {tolerance}"
    assert solution.weights.isfinite().all()
    assert (solution.gradient_norm <= solution.tolerance).all()
    assert moved(head, solution.weights) <= solution.sensitivity(n) * DOUBLE, about
    unit = n * 2.0**-51 + torch.finfo(dtype).eps
    cast = head.smoothness * unit * head.lipschitz / head.l2_reg
    found = exact_gradient(head, solution.weights, x, y)
    assert (found <= solution.gradient_norm.numpy() + cast).all(), about
    return len(x)


@each_dtype
def test_what_cannot_be_certified_or_takes_for_ever_is_refused(dtype: torch.dtype) -> None:
    """Before anything is computed, from public numbers alone."""
    for seed in range(40):
        head = Dice(seed).head(HOPELESS, radius=None)
        x, y = torch.zeros(5, 7, dtype=dtype), torch.zeros(5, dtype=torch.int64)
        with pytest.raises(ValueError, match=NAMED):
            fit_exact(head, x, y)


@pytest.mark.parametrize("kind", KINDS)
def test_the_certificate_covers_its_own_rounding(kind: type[Head]) -> None:
    """On the weights nothing is rounded after the certificate: the true gradient is below it."""
    generator = torch.Generator().manual_seed(0)
    for l2_reg in (1e-2, 1e-3, 1e-4):
        for tolerance in (1e-12, 1e-11, 1e-10):
            head = kind(num_classes=3, l2_reg=l2_reg, clip_norm=1.0)
            x = torch.randn(3, 12, 3, generator=generator, dtype=torch.float64)
            x /= torch.linalg.vector_norm(x, dim=-1, keepdim=True) * (1 + 1e-12)
            y = torch.randint(3, (3, 12), generator=generator)
            solution = fit_exact(head, x, y, tolerance=tolerance)
            found = exact_gradient(head, solution.weights, x, y)
            assert (found <= solution.gradient_norm.numpy()).all()


def test_a_gradient_that_cancels_is_not_certified() -> None:
    """Equal rows of opposite coefficients: ⟨V, GV⟩ cancels to nothing, or below."""
    x = torch.full((1, 6, 50), 0.1, dtype=torch.float64)
    v = torch.tensor([1.0, -1.0, 3.0, -3.0, 7.0, -7.0 + 2e-9], dtype=torch.float64)
    v = torch.stack([v, -v], 1)[None]
    for dims in ((-1, -2), (-1,)):
        true = torch.linalg.vector_norm(v.mT @ x, dim=dims, keepdim=True)
        assert (Gram(x).norm2(v.mT, dims).sqrt() >= true).all()


def ball_holds(dice: Dice, dtype: torch.dtype) -> int:
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


AT_ANY_SCALE = [  # seeds, many seeds, least shares in float64 and float32 that are not refused
    (sgd_holds, 150, 4000, (0.85, 0.45)),
    (exact_holds, 100, 2000, (0.9, 0.4)),
    (ball_holds, 300, 6000, (0.61, 0.61)),
]


@each_dtype
@pytest.mark.parametrize("long", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("holds", "few", "many", "shares"), AT_ANY_SCALE)
def test_movement_is_as_stated_at_any_scale(holds, few, many, shares, long, dtype) -> None:
    seeds = many if long else few
    done = [holds(Dice(seed), dtype) for seed in range(seeds)]
    assert np.count_nonzero(done) >= shares[dtype == torch.float32] * seeds


@pytest.mark.parametrize("dims", [(-2, -1), (-2,)])
def test_no_point_of_the_ball_is_nearer_and_a_projection_never_expands(dims) -> None:
    """⟨W − ΠW, V − ΠW⟩ ≤ 0 for every V in the ball characterises the projection."""
    generator = torch.Generator().manual_seed(0)
    weights, others = torch.randn(2, 500, 5, 4, generator=generator, dtype=torch.float64)
    near = torch.arange(500)[:, None, None] % 2 == 0
    others = torch.where(near, weights + 1e-3 * others, others)
    nearest, inside = (project_ball(each, 1.3, dims) for each in (weights, others))
    assert ((weights - nearest) * (inside - nearest)).sum(dims).max() <= 1e-12
    before = (weights - others).square().sum(dims)
    assert ((nearest - inside).square().sum(dims) <= before * (1 + 1e-12)).all()
