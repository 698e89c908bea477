"""Baselines over extreme scales: no record moves a sum by more than the noise is planned for."""

import math

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from heads import HuberSVMHead, LogisticHead, SoftmaxHead
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy
from train_distributed.one_shot.registry import NOT_PRIVATE, RIVALS
from train_distributed.one_shot.statistic import Chunk
from train_distributed.partition import split
from train_distributed.privacy.guarantee import ROUND_UP
from train_distributed.research.rivals import central, dp_fl
from train_distributed.research.rivals.averages import AveragedMinimisers, DualSVM
from train_distributed.research.rivals.gradient_perturbation import GradientSum


def pair(case, bound, classes, types=(torch.float32, torch.float64)):
    """Two chunks of one user that differ in a record."""
    n, dim = case.whole(1, 12), case.whole(1, 6)
    dtype, counts = case.draw.choice(types), torch.tensor([n])
    x, y = case.rows(n, dim, bound), torch.randint(classes, (n,), generator=case.generator())
    both = ((x, y), case.neighbour(x, y, classes, bound))
    return [
        Chunk(torch.tensor([0]), stored(a, bound, dtype)[None], b[None], counts) for a, b in both
    ]


def stored(x, bound, dtype):
    """Rows of a type, those shorter by an ulp that it made longer than the bound."""
    x = x.to(dtype)
    over = torch.linalg.vector_norm(x.double(), dim=1, keepdim=True) > bound
    return torch.where(over, x * (1 - 2 * torch.finfo(dtype).eps), x)


def moved(method, chunks, parts):
    """The largest L2 distance of the two submissions' parts, without rounding of its own."""
    first, second = (method.submit(chunk)[0].numpy().astype(np.longdouble) for chunk in chunks)
    assert np.isfinite(first).all()
    difference = (first - second).reshape(-1, parts)
    return float(np.linalg.norm(difference, axis=0).max())


def check_gradients(case):
    classes, bound = case.whole(2, 5), case.scale()
    head = SoftmaxHead(num_classes=classes, l2_reg=case.scale(), clip_norm=bound)
    chunks = pair(case, bound, classes)
    shape = (chunks[0].x.shape[2], classes)
    weights = case.scale() * torch.randn(shape, generator=case.generator(), dtype=torch.float64)
    step = GradientSum(head, weights, case.whole(1, 100))
    assert moved(step, chunks, 1) <= step.record_sensitivity(chunks[0].counts) * ROUND_UP
    assert float(step.submit(chunks[0]).abs().max()) <= step.entry_bound(int(chunks[0].counts))
    following = step.stepped(step.submit(chunks[0])[0], 3)
    assert bool(following.isfinite().all())


def check_minimisers(case):
    """Λ/c² is the problem's own scale; the solver's effort grows with its root."""
    bound = case.scale(-6, 6)
    head = LogisticHead(num_classes=2, l2_reg=bound**2 * case.scale(-3, 6), clip_norm=bound)
    chunks = pair(case, bound, 2)
    method = AveragedMinimisers(head=head, dim=chunks[0].x.shape[2], users=case.whole(1, 50))
    assert moved(method, chunks, 2) <= method.record_sensitivity(chunks[0].counts) * ROUND_UP


def check_dual(case):
    bound = case.scale(-6, 6)
    head = HuberSVMHead(num_classes=2, l2_reg=bound**2 * case.scale(-2, 6), clip_norm=bound)
    chunks = pair(case, bound, 2)
    method = DualSVM(head=head, dim=chunks[0].x.shape[2])
    distance = moved(method, chunks, 2)
    if not method.unfinished:  # liblinear itself says otherwise that nothing is promised
        assert distance <= method.record_sensitivity(chunks[0].counts) * ROUND_UP


def check_perturbed_minimum(case):
    """A pair with one linear term: within 2L/nΛ, and what both solutions are off by."""
    budget = central.Budget(case.scale(), case.scale(-12, -0.01), 0.001, 0.99)
    chunks = pair(case, 1.0, 2, types=(torch.float64,))
    n, dim = chunks[0].x.shape[1:]
    head = HuberSVMHead(num_classes=2, l2_reg=budget.regulariser / n, clip_norm=1.0)
    linear = budget.linear_std(n) * torch.randn(dim, generator=case.generator()).double()
    small = central.tolerance(n)
    found = [
        central.minimise(head, one.x[0], one.y[0].double() * 2 - 1, linear, small) for one in chunks
    ]
    distance = np.linalg.norm(found[0].numpy().astype(np.longdouble) - found[1].numpy())
    assert float(distance) <= (2 / n + 2 * small) / head.l2_reg * (1 + 1e-12)
    assert steepness(head, chunks[0], linear, found[0]) <= small
    assert 0 < budget.output_std(n, small) < math.inf


def steepness(head, chunk, linear, weights):
    """‖∇‖ of a perturbed machine in extended precision."""
    x, w = (value.numpy().astype(np.longdouble) for value in (chunk.x[0], weights))
    signed = x * (chunk.y[0].numpy()[:, None] * 2 - 1)
    pull = np.clip((1 + head.relaxation - signed @ w) / (2 * head.relaxation), 0, 1)
    gradient = -signed.T @ pull / len(x) + head.l2_reg * w + linear.numpy()
    return float(np.linalg.norm(gradient))


def check_opacus(case):
    """One full batch without noise: what a record moves; then many steps with noise."""
    bound, clip, rate = case.scale(), case.scale(), case.scale(-3, 12)
    chunks = pair(case, bound, 3, types=(torch.float32,))
    n, dim = chunks[0].x.shape[1:]
    common = {"learning_rate": rate, "gradient_clip": clip, "batch_size": n}
    found = []
    for chunk in chunks:
        once = dp_fl.fit_private(
            chunk.x[0], chunk.y[0], 3, noise=0.0, epochs=1, generator=torch.Generator(), **common
        )
        found.append(once.numpy().astype(np.longdouble))
    distance = float(np.linalg.norm(found[0] - found[1])) / rate * n
    # the step W − rate · sum/n rounds once more, after the sum
    assert distance <= 2 * clip * dp_fl.rounding(n, 3 * dim) * (1 + 1e-12)
    noisy = dp_fl.fit_private(
        chunks[0].x[0],
        chunks[0].y[0],
        3,
        noise=case.scale(),
        epochs=5,
        generator=case.generator(),
        **common,
    )
    assert bool(noisy.isfinite().all())


def check_whole(case):
    """Any promise, through the public call: a finite model or a named refusal."""
    method = case.draw.choice([name for name in (*RIVALS, *NOT_PRIVATE) if name != "dp-fl"])
    clip = 2.0 ** case.whole(-30, 30)
    x = case.rows(30, 4, case.scale())
    data = EmbeddingSet(
        embeddings=x.numpy().astype(np.float32),
        labels=np.arange(30) % 3,
        split=np.zeros(30, np.uint8),
        meta={"class_names": ["a", "b", "c"]},
    )
    private = not method.startswith("non-private")
    released = learn(
        data,
        method,
        Privacy(case.scale() if private else math.inf, case.scale(-12, -0.01)),
        transform=PublicTransform.identity(4, clip_norm=clip, constant=clip / 4),
        partition=split(torch.arange(30) % 3, 3),
        noise="float",
        generator=case.generator(),
        **({"l2_reg": clip**2 * case.scale(-2, 6)} if private and method != "amp" else {}),
    )
    assert bool(released.weights.isfinite().all())


CHECKS = {
    "gradients": (check_gradients, 60, 15_000),
    "minimisers": (check_minimisers, 20, 2000),
    "dual": (check_dual, 40, 2000),
    "perturbed minimum": (check_perturbed_minimum, 40, 3000),
    "opacus": (check_opacus, 60, 1000),
    "whole": (check_whole, 16, 300),
}


@pytest.mark.parametrize("name", CHECKS)
def test_no_record_moves_a_baseline_by_more_than_is_charged(name, held):
    check, few, _ = CHECKS[name]
    held(name, few, check)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKS)
def test_the_same_over_many_cases(name, held):
    check, _, many = CHECKS[name]
    held(name, many, check)
