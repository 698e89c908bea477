"""What a release claims, at any scale: a pair moves by at most the charged sensitivity.

pytest -n 0 tests/train_distributed/one_shot/test_extreme_releases.py -m slow
"""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.source import check_stream
from train_distributed.one_shot.statistic import Chunk, Statistic
from train_distributed.partition import Partition
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian

NAMED = re.compile(
    r"^(l2_reg|clip_norm|radius|relaxation|epochs|tolerance|lipschitz / l2_reg|l2_reg \+ curvature|"
    r"rows of a user|local_std|step|parties|alpha|constant) "
)
HEADS = ("softmax", "svm", "logistic")
FAR_BELOW = [("softmax", 8.857e-5, 500), ("svm", 1.215e-4, 500), ("logistic", 1.824e-5, 150)]


def equal_rows(*, flipped: bool) -> EmbeddingSet:
    """One user's 49 equal rows with labels in turn, the last one flipped in the neighbour."""
    labels = np.arange(49) % 2
    labels[-1] ^= flipped
    return EmbeddingSet(
        embeddings=np.full((49, 400), 1 / 20, np.float32),
        labels=labels,
        users=np.zeros(49, np.int64),
        split=np.zeros(49, np.uint8),
        meta={"class_names": ["a", "b"]},
    )


@pytest.mark.parametrize("noise", ["discrete", "float"])
@pytest.mark.parametrize(("name", "radius", "epochs"), FAR_BELOW)
def test_a_radius_far_below_the_reach_holds_in_a_release(
    monkeypatch: pytest.MonkeyPatch, name: str, radius: float, epochs: int, noise: Any
) -> None:
    """Noise of next to nothing leaves the sums to be seen; what they moved was paid for.

    Of all orders that may be drawn, both neighbours are given the same one.
    """
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    constant = float(np.float32(0.05))
    transform = PublicTransform.identity(400, math.sqrt(1.0025), constant)
    options = {"solver": "sgd", "l2_reg": 1.0, "radius": radius, "batch_size": 10}
    options |= {"epochs": epochs, "prior": "private"}
    promise = Privacy(1e10, 1e-5)
    opened, report = [], {}
    for flipped in (False, True):
        released = release(
            equal_rows(flipped=flipped), name, promise, transform=transform, noise=noise, **options
        )
        opened.append(released.opened)
        report = released.report
    assert report["suitable_for_release"] is (noise == "discrete")
    claimed = math.sqrt(report["compositions"]) * report["sensitivity"]
    moved = float((opened[0] - opened[1]).norm())
    noise_norm = 6 * report["local_noise_std"] * math.sqrt(2 * opened[0].numel())
    assert noise_norm <= 0.01 * claimed
    assert moved <= claimed + noise_norm
    assert moved >= 0.9 * claimed


def neighbours(
    name: str, transform: PublicTransform, draw: np.random.Generator
) -> tuple[Chunk, Chunk]:
    """Two users' chunks that differ in the last record, from rows of any size."""
    n, classes = int(draw.integers(1, 9)), 2
    features = draw.standard_normal((n, transform.dim - 1)) * 10.0 ** draw.uniform(-6, 13, (n, 1))
    if draw.random() < 0.5:
        features[:] = features[0]
    pair, y = np.stack([features, features]), draw.integers(0, classes, n)
    if not METHODS[name].classes:
        y = draw.integers(0, 2, (n, classes)).astype(np.int8)
    labels = np.stack([y, y])
    change = int(draw.integers(3))
    if change != 1:
        pair[1, -1] *= -1
    if change:
        labels[1, -1] ^= 1
    rows = [transform(torch.from_numpy(part).float())[None] for part in pair]
    first, second = (
        Chunk(torch.zeros(1, dtype=torch.int64), x, torch.from_numpy(of)[None], torch.tensor([n]))
        for x, of in zip(rows, labels, strict=True)
    )
    return first, second


def drawn(name: str, draw: np.random.Generator) -> tuple[Statistic, PublicTransform]:
    """A method with constants of any scale, and the transform of its rows."""
    clip_norm = 10.0 ** draw.uniform(-12, 12) if draw.random() < 0.5 else 1.0
    constant = float(np.float32(clip_norm * draw.uniform(0.01, 0.99)))
    dim = int(draw.integers(1, 30))
    transform = PublicTransform.identity(dim, clip_norm, constant)
    options: dict[str, Any] = {}
    if name in HEADS:
        options["l2_reg"] = clip_norm**2 * 10.0 ** draw.uniform(-3, 12)
        if draw.random() < 0.7:
            options["radius"] = clip_norm / options["l2_reg"] * 10.0 ** draw.uniform(-6, 1)
        if draw.random() < 0.6:
            options |= {"solver": "sgd", "epochs": int(10 ** draw.uniform(0, 1.5))}
            options["batch_size"] = int(draw.integers(1, 10))
    elif draw.random() < 0.5:
        options["alpha"] = 10.0 ** draw.uniform(-3, 3) / clip_norm
    if name == "findings":
        options |= {"most_findings": 1 + draw.random(), "unknown": (None, "ask")[draw.integers(2)]}
    return build_method(name, transform, 2, options).statistic, transform


def moved(method: Statistic, first: Tensor, second: Tensor) -> float:
    return float(((first - second) * method.scale).norm())


def holds(name: str, seed: int) -> bool:
    """Record and user level of one pair, and the integers that leave the user."""
    draw = np.random.default_rng(seed)
    try:
        method, transform = drawn(name, draw)
        chunks = neighbours(name, transform, draw)
        sizes = chunks[0].counts
        unit: Any = ("record", "user")[int(draw.integers(2))]
        guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5, unit=unit))
        mechanism = DiscreteGaussian.calibrated(method, guarantee, sizes)
        sent = [method.submit(chunk.rounded(mechanism.grid)) for chunk in chunks]
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return False
    for chunk in chunks:
        one_class = replace(chunk, y=chunk.one_class)
        check_stream(one_class, 2, transform.clip_norm, transform.constant)
    about = f"seed {seed}: {method}"
    assert all(part.isfinite().all() for part in sent)
    assert moved(method, *sent) <= guarantee.joint_sensitivity, about
    words = [mechanism.encode((part * method.scale)[0].numpy()) for part in sent]
    steps = words[0].view(np.int64) - words[1].view(np.int64)
    charged = guarantee.joint_sensitivity
    if mechanism.grid is None:
        charged += math.sqrt(steps.size) * float(np.max(mechanism.step))
    assert np.linalg.norm(steps * mechanism.step) <= charged * (1 + 1e-12), about
    return True


@pytest.mark.parametrize("name", METHODS)
def test_a_release_at_any_scale(name: str) -> None:
    assert sum(holds(name, seed) for seed in range(60)) >= 15


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_a_release_at_any_scale_at_length(name: str) -> None:
    done, seed = 0, 1000
    while done < 2_000:
        done, seed = done + holds(name, seed), seed + 1
