"""Constants, loss and gradient of each head against autograd and naive pseudocode."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import Head, HuberSVMHead, LogisticHead, SoftmaxHead

C, DIM = 3.0, 4
HEADS: list[Head] = [
    SoftmaxHead(num_classes=2, l2_reg=0.3, clip_norm=C),
    SoftmaxHead(num_classes=5, l2_reg=0.3, clip_norm=C),
    HuberSVMHead(num_classes=3, l2_reg=0.3, clip_norm=C),
    HuberSVMHead(num_classes=3, l2_reg=0.3, clip_norm=C, relaxation=1.5),
    LogisticHead(num_classes=3, l2_reg=0.3, clip_norm=C),
]
each_head = pytest.mark.parametrize("head", HEADS, ids=lambda h: f"{type(h).__name__}{h.curvature}")


def data(head: Head, n: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Weights, rows within the clip norm, labels."""
    generator = torch.Generator().manual_seed(n)
    weights = torch.randn(DIM, head.num_classes, generator=generator, dtype=torch.float64)
    x = torch.randn(n, DIM, generator=generator, dtype=torch.float64)
    x *= C / torch.linalg.vector_norm(x, dim=1).max()
    return weights, x, torch.randint(head.num_classes, (n,), generator=generator)


def naive_loss(head: Head, scores: list[float], label: int) -> float:
    """One row's loss, transcribed from the definitions."""
    if isinstance(head, SoftmaxHead):
        return -math.log(math.exp(scores[label]) / sum(math.exp(s) for s in scores))
    total = 0.0
    for k, score in enumerate(scores):
        z = score if k == label else -score
        if isinstance(head, LogisticHead):
            total += math.log(1 + math.exp(-z))
            continue
        assert isinstance(head, HuberSVMHead)
        h = head.relaxation
        if z > 1 + h:
            total += 0
        elif abs(1 - z) <= h:
            total += (1 + h - z) ** 2 / (4 * h)
        else:
            total += 1 - z
    return total


@each_head
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 3.0])
def test_loss_equals_naive_pseudocode(head: Head, scale: float) -> None:
    weights, x, y = data(head)
    weights = scale * weights
    rows = zip((x @ weights).tolist(), y.tolist(), strict=True)
    expected = sum(naive_loss(head, scores, label) for scores, label in rows) / len(y)
    expected += head.l2_reg / 2 * sum(w * w for w in weights.flatten().tolist())
    assert head.loss(weights, x, y).item() == pytest.approx(expected, rel=1e-12)


@each_head
@pytest.mark.parametrize("scale", [0.0, 0.3, 1.0, 30.0])
def test_gradient_equals_autograd(head: Head, scale: float) -> None:
    weights, x, y = data(head)
    weights = (scale * weights).requires_grad_()
    (expected,) = torch.autograd.grad(head.loss(weights, x, y), weights)
    torch.testing.assert_close(head.gradient(weights, x, y), expected, rtol=1e-12, atol=1e-12)


@each_head
def test_a_batch_of_users_is_every_user_alone(head: Head) -> None:
    users = [data(head, n=6) for _ in range(2)]
    users[1] = (users[1][0] * 2, -users[1][1], users[1][2].flip(0))
    together = [torch.stack(part) for part in zip(*users, strict=True)]
    for method in (head.loss, head.gradient):
        alone = torch.stack([method(*user) for user in users])
        torch.testing.assert_close(method(*together), alone, rtol=1e-13, atol=0)


def data_term(head: Head, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
    return head.data_loss(x @ weights, head.targets(y, x.dtype)).mean()


def worst_inputs(head: Head) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Rows at the clip norm on weights that make one loss as steep or as curved as it gets."""
    row = torch.zeros(1, DIM, dtype=torch.float64)
    row[0, 0] = C
    label = torch.zeros(1, dtype=torch.int64)
    weights = torch.zeros(DIM, head.num_classes, dtype=torch.float64)
    steep, even, at_margin = weights.clone(), weights.clone(), weights.clone()
    steep[0, 0], steep[0, 1] = -20, 20  # surely wrong
    even[0, 2:] = -20  # two classes alike, no other
    at_margin[0] = 1 / C  # z = 1, the middle of the parabola
    return [(w, row, label) for w in (steep, even, at_margin)]


@each_head
def test_lipschitz_and_curvature_are_attained_and_never_exceeded(head: Head) -> None:
    """Of one composition: all columns together, or one of them."""
    steepest, most_curved = 0.0, 0.0
    own = slice(None) if isinstance(head, SoftmaxHead) else slice(1)
    random = [data(head, n) for n in (1, 2, 5)]
    for weights, x, y in [*random, *worst_inputs(head)]:
        loss = partial(data_term, head, x, y)
        gradient: Any = torch.autograd.functional.jacobian(loss, weights)
        hessian: Any = torch.autograd.functional.hessian(loss, weights)
        block = hessian[:, own][..., own].reshape(gradient[:, own].numel(), -1)
        steepest = max(steepest, gradient[:, own].norm().item())
        most_curved = max(most_curved, torch.linalg.eigvalsh(block)[-1].item())
    assert steepest <= head.lipschitz * (1 + 1e-12)
    assert steepest >= 0.9999 * head.lipschitz
    assert most_curved <= head.curvature * (1 + 1e-12)
    assert most_curved >= 0.9999 * head.curvature


@each_head
def test_constants_by_their_formulas(head: Head) -> None:
    assert head.smoothness == head.l2_reg + head.curvature
    assert head.sensitivity(50) == pytest.approx(2 * head.lipschitz / (0.3 * 50), rel=1e-14)
    ball = type(head)(num_classes=3, l2_reg=0.3, clip_norm=C, radius=0.7)
    stated = 2 * (0.3 * 0.7 + ball.lipschitz) / (0.3 * 50)
    assert ball.sensitivity(50, bound="paper") == pytest.approx(stated, rel=1e-14)
    assert ball.sensitivity(50, bound="paper") > ball.sensitivity(50)
    assert head.compositions == (1 if isinstance(head, SoftmaxHead) else head.num_classes)
