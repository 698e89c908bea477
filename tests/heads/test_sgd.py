"""Projected SGD: golden values, both paths, padding, and a plain autograd loop."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from heads import Head, HuberSVMHead, LogisticHead, SoftmaxHead, fit_sgd
from heads.rounding import Method
from heads.sgd import Schedule, Step

HEADS: list[Head] = [
    SoftmaxHead(num_classes=3, l2_reg=0.1, clip_norm=2.0),
    SoftmaxHead(num_classes=3, l2_reg=0.1, clip_norm=2.0, radius=0.5),
    HuberSVMHead(num_classes=3, l2_reg=0.1, clip_norm=2.0),
    HuberSVMHead(num_classes=3, l2_reg=0.1, clip_norm=2.0, radius=0.2),
    LogisticHead(num_classes=3, l2_reg=0.1, clip_norm=2.0, radius=0.5),
]
each_head = pytest.mark.parametrize("head", HEADS, ids=lambda h: f"{type(h).__name__}-{h.radius}")
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
        golden = {
            key.removeprefix(f"{case}_"): file[key] for key in file.files if key.startswith(case)
        }
    x = torch.from_numpy(golden["x"])
    x = torch.cat([torch.ones(len(x), 1), x], 1)
    head = SoftmaxHead(
        num_classes=int(golden["num_classes"]),
        l2_reg=float(golden["l2_reg"]),
        clip_norm=60.0,
        radius=float(golden["radius"]),
    )
    steps: dict[str, Any] = {name: int(golden[name]) for name in ("epochs", "batch_size")}
    smoothness, y = float(golden["smoothness"]), torch.from_numpy(golden["y"])
    weights = fit_sgd(head, x, y, smoothness=smoothness, method=method, **steps)
    expected = torch.from_numpy(np.vstack([golden["intercept"], golden["coef"].T]))
    assert (weights - expected).norm() <= 1e-5 * expected.norm()


@each_head
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize(("epochs", "batch_size"), [(1, 20), (7, 4), (40, 3)])
def test_gram_and_primal_take_the_same_steps(head, counted, shuffled, epochs, batch_size) -> None:
    x, y = rows(users=3, n=8)
    counts = torch.tensor([8, 1, 5]) if counted else None
    options: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "counts": counts}
    found = []
    for method in ("gram", "primal"):
        options["generator"] = torch.Generator().manual_seed(3) if shuffled else None
        found.append(fit_sgd(head, x, y, method=method, **options))
    assert (found[0] - found[1]).norm() <= 1e-10 * found[1].norm()


@each_head
@pytest.mark.parametrize("epochs", [3, 40])
def test_a_user_gets_the_same_bits_whoever_leaves_its_ball_beside_it(head, epochs, monkeypatch):
    """Neither balls of others nor whether norms are looked at: a neighbour must not be told by it.

    The second user's rows are short, so it stays far inside; the first one's are, or are not.
    """
    x, y = rows(users=2, n=9)
    x[1] *= 0.01
    calm = x.clone()
    calm[0] *= 0.01

    def norms(weights: Tensor) -> Tensor:
        """(users,) of the longest composition."""
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


@each_head
@each_method
@pytest.mark.parametrize("batch_size", [1, 3, 7, 50])
def test_equals_a_plain_autograd_loop(head: Head, method: Method, batch_size: int) -> None:
    """Of each user alone, though the users of a call are of several sizes."""
    x, y = rows(users=5, n=25)
    counts = torch.tensor([25, 1, 7, 12, 24])
    weights = fit_sgd(head, x, y, epochs=6, batch_size=batch_size, counts=counts, method=method)
    for user, n in enumerate(counts.tolist()):
        expected = plain_autograd(head, x[user, :n], y[user, :n], 6, batch_size)
        torch.testing.assert_close(weights[user], expected, rtol=1e-10, atol=1e-13)


@each_method
def test_a_generator_draws_a_new_order_per_user_and_epoch(method: Method) -> None:
    """Two users with the same rows part ways; the same generator state repeats them."""
    x, y = (part.expand(2, *part.shape[1:]) for part in rows(users=1, n=8))
    options: dict[str, Any] = {"epochs": 2, "batch_size": 3, "method": method}
    draws = [torch.Generator().manual_seed(5) for _ in range(2)]
    found = [fit_sgd(HEADS[0], x, y, generator=draw, **options) for draw in draws]
    assert torch.equal(found[0], found[1])
    assert not torch.allclose(found[0][0], found[0][1], rtol=1e-6)


@each_method
def test_one_user_float32_and_type(method: Method) -> None:
    x, y = rows(users=1, n=8)
    wide = fit_sgd(HEADS[1], x[0], y[0], epochs=5, batch_size=4, method=method)
    narrow_x = x[0].float() * (1 - 1e-6)
    narrow = fit_sgd(HEADS[1], narrow_x, y[0], epochs=5, batch_size=4, method=method)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert wide.shape == narrow.shape == (9, 3)
    assert (narrow - wide).norm() <= 1e-5 * wide.norm()
