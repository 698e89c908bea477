"""The certified solver: its certificate recomputed, and an independent solver beside it."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from heads import (
    Head,
    HuberSVMHead,
    LogisticHead,
    SoftmaxHead,
    default_tolerance,
    descent,
    exact,
    fit_exact,
)
from heads.spaces import Gram, Slope, Weights

CLASSES = 3
MAKE = {"softmax": SoftmaxHead, "svm": HuberSVMHead, "logistic": LogisticHead}
each_name = pytest.mark.parametrize("name", MAKE)
each_shape = pytest.mark.parametrize(("n", "dim"), [(30, 60), (60, 30)], ids=["gram", "primal"])


def rows(n: int, dim: int, clip_norm: float, users: int = 1) -> tuple[Tensor, Tensor]:
    """Embedding-like rows at the clip norm with a shared direction, every third one repeated."""
    generator = torch.Generator().manual_seed(n + dim)
    x = torch.randn(users, n, dim, generator=generator, dtype=torch.float64).relu() + 0.3
    x[..., 0] = 1
    x *= clip_norm * (1 - 2**-20) / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    y = torch.randint(CLASSES, (users, n), generator=generator)
    x[:, 1::3], y[:, 1::3] = x[:, 0::3], y[:, 0::3]
    x[:, 2] = x[:, 0]  # the same row with another label
    y[:, 2] = (y[:, 0] + 1) % CLASSES
    return x, y


def gradient_norm(head: Head, weights: Tensor, x: Tensor, y: Tensor) -> float:
    """Largest gradient norm of one composition, in float64 from the definition."""
    wide = x.double()
    residual = head.residual(wide @ weights.double(), head.targets(y, torch.float64))
    gradient = head.l2_reg * weights.double() + wide.mT @ residual / x.shape[-2]
    return gradient.square().sum(head.norm_dims).sqrt().max().item()


@each_name
@each_shape
@pytest.mark.parametrize("l2_reg", [1e-4, 0.1])
def test_equals_scipy_within_both_certificates(name: str, n: int, dim: int, l2_reg: float) -> None:
    """‖W − W*‖ ≤ ‖∇J(W)‖/Λ for both, so their distance is at most the sum."""
    head = MAKE[name](num_classes=CLASSES, l2_reg=l2_reg, clip_norm=1.0)
    x, y = rows(n, dim, 1.0)
    x, y = x[0], y[0]

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(flat).view(dim, CLASSES)
        gradient = head.gradient(weights, x, y).numpy().ravel()
        return head.loss(weights, x, y).item(), gradient

    options = {"maxiter": 100_000, "maxfun": 200_000, "ftol": 0, "gtol": 1e-10, "maxcor": 30}
    found = minimize(loss, np.zeros(dim * CLASSES), jac=True, method="L-BFGS-B", options=options)
    theirs = torch.from_numpy(found.x).view(dim, CLASSES)
    their_norm = gradient_norm(head, theirs, x, y)
    solution = fit_exact(head, x, y, tolerance=1e-9)
    distance = (solution.weights - theirs).square().sum(head.norm_dims).sqrt().max().item()
    assert their_norm <= 1e-6  # the comparison means something
    assert distance <= (1e-9 + their_norm) / l2_reg * (1 + 1e-6)


@each_name
@pytest.mark.parametrize("l2_reg", [1e-4, 1.0])
def test_padded_users_equal_separate_users(name: str, l2_reg: float) -> None:
    head = MAKE[name](num_classes=CLASSES, l2_reg=l2_reg, clip_norm=1.0)
    for n, dim in ((12, 20), (20, 12)):
        x, y = rows(n, dim, 1.0, users=3)
        counts = torch.tensor([n, 1, 7])
        padded = fit_exact(head, x, y, counts=counts, tolerance=1e-8)
        for user, own in enumerate(counts.tolist()):
            alone = fit_exact(head, x[user, :own], y[user, :own], tolerance=1e-8)
            distance = (padded.weights[user] - alone.weights).square().sum(head.norm_dims).sqrt()
            assert distance.max().item() <= 2e-8 / l2_reg
            assert gradient_norm(head, padded.weights[user], x[user, :own], y[user, :own]) <= 1.1e-8


def test_default_tolerance_follows_each_user() -> None:
    head = SoftmaxHead(num_classes=CLASSES, l2_reg=1.0, clip_norm=1.0)
    x, y = rows(12, 20, 1.0, users=3)
    solution = fit_exact(head, x, y, counts=torch.tensor([12, 1, 7]))
    expected = torch.tensor([default_tolerance(head, n) for n in (12, 1, 7)], dtype=torch.float64)
    torch.testing.assert_close(solution.tolerance, expected, rtol=1e-14, atol=0)
    largest = head.sensitivity(12) + 2 * default_tolerance(head, 1)
    assert solution.sensitivity(12) == pytest.approx(largest, rel=1e-12)
    one, many = fit_exact(head, x[0], y[0]), fit_exact(head, x[:1], y[:1])
    assert one.gradient_norm.shape == one.tolerance.shape == ()  # without a users dimension
    assert torch.equal(one.weights, many.weights[0])


@each_shape
def test_a_missed_tolerance_raises(monkeypatch: pytest.MonkeyPatch, n: int, dim: int) -> None:
    monkeypatch.setattr(descent, "iteration_cap", lambda head, tau: 1)
    head = SoftmaxHead(num_classes=CLASSES, l2_reg=1e-4, clip_norm=1.0)
    x, y = rows(n, dim, 1.0)
    with pytest.raises(ArithmeticError, match=r"missed its tolerance .* nothing may be released"):
        fit_exact(head, x, y)


@pytest.mark.parametrize(("n", "dim"), [(6, 40), (40, 6)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_user_does_not_see_who_else_is_solved(n: int, dim: int, dtype: torch.dtype):
    """Stopping all users together would let one record move everybody's weights by 2τ/Λ."""
    head = SoftmaxHead(num_classes=3, l2_reg=1e-3, clip_norm=1.0)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, n, dim, generator=generator, dtype=dtype)
    x = x / x.norm(dim=-1, keepdim=True) * 0.999
    y = torch.randint(3, (9, n), generator=generator)
    x[1:] *= 0.1
    found = []
    for first in (0.0, 0.1, 1.0):  # solved at once, with the others, and last
        users = x.clone()
        users[0] *= first
        found.append(fit_exact(head, users, y).weights[1:])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_float32_solution_states_its_rounding() -> None:
    head = LogisticHead(num_classes=CLASSES, l2_reg=1e-3, clip_norm=1.0)
    x, y = rows(6, 4, 0.999)
    solution = fit_exact(head, x.float(), y, tolerance=1e-9)
    stated = head.sensitivity(6) + (2e-9 + 2**-23 * (1 + 1e-9)) / 1e-3
    assert solution.sensitivity(6) == pytest.approx(stated, rel=1e-12)
    assert solution.weights.dtype == torch.float32


MANY = [make(num_classes=CLASSES, l2_reg=0.01, clip_norm=1.0) for make in MAKE.values()]
each_head = pytest.mark.parametrize("head", MANY, ids=MAKE)


def many_rows(n: int, dim: int) -> tuple[Tensor, Tensor]:
    """Float32 rows just inside the clip norm 1, classes in turns."""
    generator = torch.Generator().manual_seed(n)
    y = torch.arange(n) % CLASSES
    x = torch.randn(n, dim, generator=generator)
    x[torch.arange(n), y] += 2
    x *= (1 - 1e-6) / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x, y


@each_head
@pytest.mark.parametrize("misled", [False, True])
def test_samples_cost_or_save_time_only(head, misled, monkeypatch) -> None:
    """Rows alike need a handful of passes; or what any sample sees is of one class."""
    x, y = many_rows(9_000, 256) if misled else many_rows(16_384, 128)
    if misled:
        seen = torch.zeros(len(x), dtype=torch.bool)
        for stride in descent.STRIDES:
            seen[::stride] = True
        x[seen], y[seen] = x[0].clone(), 0
    passes: list[torch.dtype] = []  # types of all sweeps over all rows
    sweep = Weights.sweep

    def count(space: Weights, v: Tensor, slope: Slope) -> Tensor:
        passes.extend([v.dtype] * (space.x.shape[1] == len(x)))
        return sweep(space, v, slope)

    monkeypatch.setattr(Weights, "sweep", count)
    solution = fit_exact(head, x, y)
    assert gradient_norm(head, solution.weights, x, y) <= 1.1 * default_tolerance(head, len(x))
    assert passes[0] == torch.float32  # cheap gradients lead, a certificate ends
    assert passes[-1] == torch.float64
    assert (len(passes) > 20) == misled


@each_head
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_users_with_samples_equal_separate_users(head, dtype, monkeypatch) -> None:
    monkeypatch.setattr(exact, "ALONE", 0)
    monkeypatch.setattr(descent, "LEAST_SAMPLE", 2)
    x, y = (part.unflatten(0, (3, 70)) for part in many_rows(210, 20))
    counts, x = torch.tensor([70, 1, 33]), x.to(dtype)
    cast = torch.finfo(dtype).eps * head.lipschitz / head.l2_reg
    padded = fit_exact(head, x, y, counts=counts, tolerance=1e-8)
    for user, own in enumerate(counts.tolist()):
        alone = fit_exact(head, x[user, :own], y[user, :own], tolerance=1e-8)
        distance = (padded.weights[user] - alone.weights).square().sum(head.norm_dims).sqrt()
        assert distance.max().item() <= 2e-9 / head.l2_reg * (1 + 1e-6) + cast
        assert padded.gradient_norm[user] <= 1e-8


def test_weights_that_cancelled_down_from_far_are_no_end() -> None:
    """Coefficients of equal rows that pull against each other: ‖∇J‖ is 0, and nobody knows it."""
    head = SoftmaxHead(num_classes=2, l2_reg=1.0, clip_norm=1.0)
    x = torch.zeros(1, 2, 3, dtype=torch.float64)
    x[..., 0] = 1
    sizes = torch.tensor([2.0], dtype=torch.float64)
    problem = descent.Problem(head, x, torch.tensor([[0, 1]]), sizes, Gram(x))
    start = problem.at()
    for far in (0.5, 1.5, 1e6):
        spread = torch.tensor([[[far, -far], [-far, far]]], dtype=torch.float64)
        norms = problem.at(spread - start.gradient).norms
        left = problem.space.spread(spread, problem.dims).max()
        assert bool(norms.isinf()) == bool(left > 2 * head.lipschitz)
