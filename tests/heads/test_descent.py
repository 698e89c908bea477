"""Users of many rows: samples hasten the certified solver, and nothing rests on what they say."""

import pytest
import torch
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
HEADS = [
    make(num_classes=CLASSES, l2_reg=0.01, clip_norm=1.0)
    for make in (SoftmaxHead, HuberSVMHead, LogisticHead)
]
each_head = pytest.mark.parametrize("head", HEADS, ids=lambda head: type(head).__name__)


def rows(n: int, dim: int) -> tuple[Tensor, Tensor]:
    """Float32 rows just inside the clip norm 1, classes in turns."""
    generator = torch.Generator().manual_seed(n)
    y = torch.arange(n) % CLASSES
    x = torch.randn(n, dim, generator=generator)
    x[torch.arange(n), y] += 2
    x *= (1 - 1e-6) / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x, y


def gradient_norm(head: Head, weights: Tensor, x: Tensor, y: Tensor) -> float:
    gradient = head.gradient(weights.double(), x.double(), y)
    return gradient.square().sum(head.norm_dims).sqrt().max().item()


def passes(monkeypatch: pytest.MonkeyPatch, n: int) -> list[torch.dtype]:
    """The types of all sweeps over n rows from now on."""
    found: list[torch.dtype] = []
    sweep = Weights.sweep

    def count(space: Weights, v: Tensor, slope: Slope) -> Tensor:
        found.extend([v.dtype] * (space.x.shape[1] == n))
        return sweep(space, v, slope)

    monkeypatch.setattr(Weights, "sweep", count)
    return found


@each_head
def test_rows_alike_need_a_handful_of_passes(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = rows(16_384, 128)
    found = passes(monkeypatch, len(x))
    solution = fit_exact(head, x, y)
    assert gradient_norm(head, solution.weights, x, y) <= 1.1 * default_tolerance(head, len(x))
    assert found[0] == torch.float32  # cheap gradients lead, a certificate ends
    assert found[-1] == torch.float64
    assert len(found) <= 20


@each_head
def test_a_sample_that_misleads_costs_time_only(head, monkeypatch) -> None:
    """Whatever any sample sees is of one class; the others are elsewhere."""
    x, y = rows(9_000, 256)
    seen = torch.zeros(len(x), dtype=torch.bool)
    for stride in descent.STRIDES:
        seen[::stride] = True
    x[seen], y[seen] = x[0].clone(), 0
    found = passes(monkeypatch, len(x))
    solution = fit_exact(head, x, y)
    assert gradient_norm(head, solution.weights, x, y) <= 1.1 * default_tolerance(head, len(x))
    assert len(found) > 20


@each_head
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padded_users_equal_separate_users(head, dtype, monkeypatch) -> None:
    monkeypatch.setattr(exact, "ALONE", 0)
    monkeypatch.setattr(descent, "LEAST_SAMPLE", 2)
    x, y = (part.unflatten(0, (3, 70)) for part in rows(210, 20))
    counts, x = torch.tensor([70, 1, 33]), x.to(dtype)
    cast = torch.finfo(dtype).eps * head.lipschitz / head.l2_reg
    padded = fit_exact(head, x, y, counts=counts, tolerance=1e-8)
    for user, own in enumerate(counts.tolist()):
        alone = fit_exact(head, x[user, :own], y[user, :own], tolerance=1e-8)
        distance = (padded.weights[user] - alone.weights).square().sum(head.norm_dims).sqrt()
        assert distance.max().item() <= 2e-9 / head.l2_reg * (1 + 1e-6) + cast
        assert padded.gradient_norm[user] <= 1e-8


@each_head
def test_samples_of_any_size_lead_to_the_same_minimiser(head, monkeypatch) -> None:
    x, y = rows(300, 40)
    whole = fit_exact(head, x.double(), y, tolerance=1e-11).weights
    monkeypatch.setattr(exact, "ALONE", 0)
    for least in (1, 5, 40):
        monkeypatch.setattr(descent, "LEAST_SAMPLE", least)
        sampled = fit_exact(head, x.double(), y, tolerance=1e-11)
        assert sampled.gradient_norm <= 1e-11
        distance = (sampled.weights - whole).square().sum(head.norm_dims).sqrt().max()
        assert distance <= 2e-11 / head.l2_reg


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
