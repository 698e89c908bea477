"""Heads against autograd and pseudocode; projected SGD against golden values and a plain loop."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import Head, HuberSVMHead, LogisticHead, SoftmaxHead, fit_sgd
from heads.rounding import Method
from heads.sgd import Schedule, Step

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


TRAINED: list[Head] = [
    make(num_classes=3, l2_reg=0.1, clip_norm=2.0, radius=radius)
    for make in (SoftmaxHead, HuberSVMHead, LogisticHead)
    for radius in (None, 0.2)
]
each_trained = pytest.mark.parametrize("head", TRAINED, ids=str)
each_method = pytest.mark.parametrize("method", ["gram", "primal"])


def rows(users: int, n: int, dim: int = 9) -> tuple[Tensor, Tensor]:
    """Rows at the clip norm with a shared direction, and labels."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(users, n, dim, generator=generator, dtype=torch.float64).relu() + 0.2
    x *= 2 * (1 - 1e-12) / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x, torch.randint(3, (users, n), generator=generator)


@each_method
@pytest.mark.parametrize("case", ["plain", "projected", "wide", "late"])
def test_golden_values_of_the_reference_implementation(reference_data, case, method) -> None:
    with np.load(reference_data / "golden" / "softmax_psgd.npz") as file:
        names = [name for name in file.files if name.startswith(case)]
        golden = {name.removeprefix(f"{case}_"): file[name] for name in names}
    x = torch.from_numpy(golden["x"])
    x = torch.cat([torch.ones(len(x), 1), x], 1)
    bounds = {name: float(golden[name]) for name in ("l2_reg", "radius")}
    head = SoftmaxHead(num_classes=int(golden["num_classes"]), clip_norm=60.0, **bounds)
    steps: dict[str, Any] = {name: int(golden[name]) for name in ("epochs", "batch_size")}
    smoothness, y = float(golden["smoothness"]), torch.from_numpy(golden["y"])
    weights = fit_sgd(head, x, y, smoothness=smoothness, method=method, **steps)
    expected = torch.from_numpy(np.vstack([golden["intercept"], golden["coef"].T]))
    assert (weights - expected).norm() <= 1e-5 * expected.norm()


@each_trained
@pytest.mark.parametrize("counts", [None, torch.tensor([8, 1, 5])])
@pytest.mark.parametrize(("epochs", "batch_size"), [(1, 20), (7, 4), (40, 3)])
def test_both_methods_follow_the_order_drawn_for_each_user(head, counts, epochs, batch_size):
    """Users with the same rows part ways; the same generator state repeats them."""
    x, y = (part.expand(3, *part.shape[1:]) for part in rows(users=1, n=8))
    options: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "counts": counts}
    found = []
    for method in ("gram", "primal", "primal"):
        draw = torch.Generator().manual_seed(3)
        found.append(fit_sgd(head, x, y, method=method, generator=draw, **options))
    assert (found[0] - found[1]).norm() <= 1e-10 * found[1].norm()
    assert torch.equal(found[1], found[2])
    assert batch_size >= 8 or not torch.allclose(found[0][0], found[0][-1], rtol=1e-6)


@each_trained
@pytest.mark.parametrize("epochs", [3, 40])
def test_a_user_gets_the_same_bits_whoever_leaves_its_ball_beside_it(head, epochs, monkeypatch):
    """No neighbour is told by others' balls, nor by whether norms are looked at."""
    x, y = rows(users=2, n=9)
    x[1] *= 0.01  # so short that the second user stays far inside; of the first, rows are or not
    calm = x.clone()
    calm[0] *= 0.01

    def norms(weights: Tensor) -> Tensor:
        of = torch.linalg.vector_norm(weights, dim=head.norm_dims, keepdim=True)
        return of.flatten(1).amax(1)

    def fit(x: Tensor, radius: float | None) -> Tensor:
        bounded = replace(head, radius=radius)
        return fit_sgd(bounded, x, y, epochs=epochs, batch_size=2, method="gram")

    radius = 0.5 * norms(fit(x, None))[0].item()
    found = fit(x, radius)
    assert norms(found)[0].item() == pytest.approx(radius)
    assert norms(found)[1] < 0.1 * radius
    assert torch.equal(found[1], fit(calm, radius)[1])
    quiet = fit(calm, 8 * radius)
    may_leave, looked = Schedule.may_leave, list[bool]()

    def always(schedule: Schedule, of: Head, norm2: Tensor, first: Step, dim: int) -> Tensor:
        looked.append(bool(may_leave(schedule, of, norm2, first, dim).any()))
        return norm2 >= 0

    monkeypatch.setattr(Schedule, "may_leave", always)
    assert torch.equal(quiet, fit(calm, 8 * radius))
    assert False in looked or epochs < 40  # or nothing was left out before
    assert torch.equal(found, fit(x, radius))


def plain_autograd(head: Head, x: Tensor, y: Tensor, epochs: int, batch_size: int) -> Tensor:
    """Algorithm 1/2 for one user, gradients by autograd of the loss."""
    b, m = min(batch_size, len(y)), 0
    weights = torch.zeros(x.shape[1], head.num_classes, dtype=x.dtype, requires_grad=True)
    for _ in range(epochs):
        for start in range(0, len(y), b):
            m += 1
            part = slice(start, start + b)
            targets = head.targets(y[part], x.dtype)
            loss = head.data_loss(x[part] @ weights, targets).sum() / b
            loss = loss + head.l2_reg / 2 * weights.square().sum()
            (gradient,) = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                rate = min(1 / head.smoothness, 1 / (head.l2_reg * m))
                weights -= rate * gradient
                if head.radius is not None:
                    norm = torch.linalg.vector_norm(weights, dim=head.norm_dims, keepdim=True)
                    weights *= torch.where(norm > head.radius, head.radius / norm, 1.0)
    return weights.detach()


@each_trained
@each_method
@pytest.mark.parametrize("batch_size", [1, 3, 7, 50])
def test_equals_a_plain_autograd_loop(head: Head, method: Method, batch_size: int) -> None:
    """Of each user alone, though the users of a call are of several sizes; in float32, too."""
    x, y = rows(users=5, n=25)
    counts = torch.tensor([25, 1, 7, 12, 24])
    options: dict[str, Any] = {"epochs": 6, "batch_size": batch_size, "method": method}
    weights = fit_sgd(head, x, y, counts=counts, **options)
    for user, n in enumerate(counts.tolist()):
        own = x[user, :n], y[user, :n]
        expected = plain_autograd(head, *own, 6, batch_size)
        torch.testing.assert_close(weights[user], expected, rtol=1e-10, atol=1e-13)
        torch.testing.assert_close(fit_sgd(head, *own, **options), expected, rtol=1e-10, atol=1e-13)
    narrow = fit_sgd(head, x.float() * (1 - 1e-6), y, counts=counts, **options)
    assert narrow.dtype == torch.float32
    assert (narrow - weights).norm() <= 1e-5 * weights.norm()
