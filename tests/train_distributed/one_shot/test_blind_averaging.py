"""Averaged heads: what a record moves whoever holds it, and what a radius caps."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from heads import (
    SoftmaxHead,
    default_tolerance,
    fit_exact,
    project_ball,
    sgd_rounding,
    sgd_sensitivity,
)
from train_distributed.one_shot.blind_averaging import HEADS, AveragedHeads, TrainedHeads
from train_distributed.one_shot.statistic import Chunk, NoisedSum

K, DIM, CLIP = 3, 5, 1.25
SGD: dict[str, Any] = {"solver": "sgd", "epochs": 3, "batch_size": 4}


def averaging(name: str, l2_reg: float = 0.5, radius: float | None = None, **more) -> TrainedHeads:
    head = HEADS[name](num_classes=K, l2_reg=l2_reg, clip_norm=CLIP, radius=radius)
    return TrainedHeads(head=head, dim=DIM, **more)


def rows_of(users: int, n: int, counts: list[int] | None = None) -> Chunk:
    """Rows of full length; float64, so that what is compared is not their rounding."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(users, n, DIM, generator=draw, dtype=torch.float64)
    x = x / x.norm(dim=2, keepdim=True) * CLIP * (1 - 1e-15)
    y = torch.randint(K, (users, n), generator=draw)
    return Chunk(torch.arange(users), x, y, torch.tensor(counts or [n] * users))


def parts(method: TrainedHeads, submissions: Tensor) -> Tensor:
    """(u, C) norms, one for each part that a record moves by `record_sensitivity`."""
    weights = submissions.unflatten(1, (DIM, K))
    return torch.linalg.vector_norm(weights, dim=method.head.norm_dims).reshape(len(weights), -1)


@pytest.mark.parametrize("name", HEADS)
def test_the_charge_is_the_solvers_own(name: str) -> None:
    """Of the exact one its tolerance, of SGD its rounding: as `heads` states them, n times."""
    exact, sgd = averaging(name), averaging(name, **SGD)
    for n in (1, 7, 1000):
        least = exact.head.sensitivity(n) + 2 * default_tolerance(exact.head, n) / 0.5
        assert exact.record_sensitivity(torch.tensor([n])) > n * least
        held = rows_of(1, n)
        found = fit_exact(exact.head, held.x[0], held.y[0])
        assert exact.record_sensitivity(torch.tensor([n])) >= n * found.sensitivity(n)
        steps: dict[str, Any] = {"epochs": 3, "batch_size": 4}
        charged = n * sgd_sensitivity(sgd.head, n, DIM, **steps)
        assert sgd.record_sensitivity(torch.tensor([n])) == charged
        rho = sgd_rounding(sgd.head, n, DIM, **steps)
        reach = 2 * sgd.head.lipschitz / 0.5
        assert reach < charged == pytest.approx(reach * (1 + n * rho), rel=1e-15)


def test_the_size_whose_rounding_is_largest_decides() -> None:
    """Neither always the largest user nor the smallest: the Gram form may round more."""
    sgd = averaging("softmax", **SGD)
    sizes = torch.tensor([1, 500, 20])
    assert sgd.record_sensitivity(sizes) == sgd.record_sensitivity(torch.tensor([500]))
    assert sgd.record_sensitivity(sizes) > sgd.record_sensitivity(torch.tensor([20]))
    head = SoftmaxHead(num_classes=10, l2_reg=0.1, clip_norm=2**0.5, radius=0.02)
    sgd = TrainedHeads(head=head, dim=1281, solver="sgd", epochs=10, batch_size=20)
    small, large = (sgd.record_sensitivity(torch.tensor([n])) for n in (640, 1281))
    assert small > 1.009 * large
    assert sgd.record_sensitivity(torch.tensor([3, 1281, 640, 1281])) == small


@pytest.mark.parametrize("solver", [{}, SGD])
def test_every_user_reaches_as_far_as_its_own_size_says(solver: dict) -> None:
    """The bound on ‖W‖ depends on n: neither the first nor the smallest user's is all users'."""
    method, sizes = averaging("softmax", **solver), torch.tensor([1, 500, 20, 500])
    alone = [float(method.user_sensitivity(sizes[k : k + 1])) for k in range(len(sizes))]
    assert method.user_sensitivity(sizes).tolist() == alone
    bounds = {method.weight_bound(n) for n in (1, 20, 500)}
    assert len(bounds) == 3


@pytest.mark.parametrize("solver", [{}, SGD])
@pytest.mark.parametrize("name", HEADS)
def test_a_model_is_the_mean_of_all_heads_weighted_by_their_rows(name: str, solver: dict) -> None:
    method, held = averaging(name, **solver), rows_of(3, 6, [6, 2, 5])
    sent = method.submit(held)
    mean = AveragedHeads(statistic=method).fit(NoisedSum(sent.sum(0), 13, 0.0)).weights
    heads = sent.unflatten(1, (DIM, K)) / held.counts[:, None, None]
    assert (parts(method, heads.flatten(1)) <= method.weight_bound(6)).all()
    assert torch.allclose(mean, (6 * heads[0] + 2 * heads[1] + 5 * heads[2]) / 13)


@pytest.mark.parametrize("name", HEADS)
def test_the_minimiser_is_projected_once(name: str) -> None:
    held, radius = rows_of(2, 9), 0.02
    method = averaging(name, radius=radius)
    free = fit_exact(method.without_radius, held.x, held.y).weights
    projected = project_ball(free, radius, method.head.norm_dims)
    assert (parts(method, free.flatten(1)) > 2 * radius).all()
    assert torch.equal(method.submit(held), (projected * 9).flatten(1))
    capped = method.record_sensitivity(held.counts)
    bare = averaging(name).record_sensitivity(held.counts)
    assert bare < capped < bare * (1 + 1e-9)  # the projection's own rounding is charged


def test_the_papers_bound_is_never_below_the_tight_one() -> None:
    sizes = torch.tensor([4, 60])
    for radius in (1e-3, 1.0):
        tight = averaging("svm", radius=radius)
        paper = replace(tight, bound="paper")
        assert paper.record_sensitivity(sizes) >= tight.record_sensitivity(sizes)
    published = 2 * (0.5 * 1.0 + CLIP) / 0.5
    assert averaging("svm", radius=1.0, bound="paper").record_sensitivity(sizes) == published
