"""A release of clipped users: what it says, what it sums, and how much noise it adds."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.statistic import submissions
from train_distributed.partition import Partition
from train_distributed.privacy import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian, FloatGaussian

K, FEATURES, ROWS = 3, 4, 6
TRANSFORM = PublicTransform.identity(FEATURES, math.sqrt(1 + 0.125**2), 0.125)


def made(name: str, norm: float | None, options: dict[str, Any] | None = None) -> Method:
    clip = {} if norm is None else {"user_clip": norm}
    own = {} if METHODS[name].sums_rows else {"l2_reg": 1.0}
    return build_method(name, TRANSFORM, K, own | (options or {}) | clip)


def rows_of(name: str, users: int, sizes: list[int], seed: int = 0) -> EmbeddingSet:
    """Of classes, or of findings for a method of those."""
    draw = np.random.default_rng(seed)
    n = sum(sizes)
    labels = draw.integers(0, K, n)
    x = draw.standard_normal((n, FEATURES)) + 3 * np.eye(FEATURES)[labels]
    one_hot = np.eye(K, dtype=np.int8)[labels]
    return EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=labels if METHODS[name].classes else np.full(n, -1),
        findings=None if METHODS[name].classes else np.maximum(one_hot, one_hot[::-1]),
        users=np.repeat(np.arange(users), sizes),
        meta={"class_names": [str(k) for k in range(K)]},
    )


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_a_release_says_how_its_users_were_clipped(name: str, noise: Any) -> None:
    rows = rows_of(name, 4, [1, 2, 30, 60])
    privacy = Privacy(1e4, 1e-5, unit="user")
    released = release(rows, name, privacy, transform=TRANSFORM, noise=noise, user_clip=5.0)
    report = released.report
    assert (report["method"], report["user_clip"]) == (name, 5.0)
    assert "scaled down" in report["user_clip_means"]
    whole = math.sqrt(report["compositions"]) * report["sensitivity"]
    assert whole == pytest.approx(10.0, rel=1e-6)
    gone = math.sqrt(report["compositions"]) * report["zero_out_sensitivity"]
    assert gone == pytest.approx(5.0, rel=1e-6)
    bare = release(rows, name, privacy, transform=TRANSFORM, noise=noise).report
    assert "user_clip" not in bare


@pytest.mark.parametrize("name", METHODS)
def test_the_sum_is_that_of_submissions_clipped_one_by_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Uneven sizes: short submissions stay as they are, long ones have the clip's length."""
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    sizes = [1, 3, 30, 60]
    rows = rows_of(name, 4, sizes)
    bare = made(name, None, {"moments": False} if METHODS[name].sums_rows else {})
    promise = Privacy(math.inf, 1e-5, unit="user")
    centre: Any = made(name, 1.0).statistic
    centre = 0.0 if centre.centre is None else centre.centre
    alone = []
    users = EmbeddingUsers(rows, TRANSFORM, own_partition(rows))
    for chunk in users.chunks():
        sent = submissions(bare.statistic, chunk, None)
        alone += list(sent - chunk.counts[:, None] * centre * bare.statistic.scale)
    lengths = [float(each.norm()) for each in alone]
    norm = (sorted(lengths)[1] + sorted(lengths)[2]) / 2
    pairs = zip(alone, lengths, strict=True)
    expected = torch.stack([each * min(1.0, norm / length) for each, length in pairs]).sum(0)
    found = release(rows, made(name, norm), promise, transform=TRANSFORM, noise="float").opened
    assert found is not None
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_the_noise_is_that_of_the_clip() -> None:
    sizes = torch.full((10,), 50)
    privacy = Privacy(3.0, 1e-5, unit="user")
    for name in METHODS:
        bare, clipped = (made(name, norm) for norm in (None, 1.0))
        plain, short = (
            Guarantee.of(sizes, m, privacy) for m in (bare.statistic, clipped.statistic)
        )
        ratio = plain.joint_sensitivity / 2.0
        long = FloatGaussian.simulated(bare.statistic, plain).local_std
        least = FloatGaussian.simulated(clipped.statistic, short).local_std
        assert least == pytest.approx(long / ratio, rel=1e-9)
        std = DiscreteGaussian.calibrated(clipped.statistic, short, sizes).local_std
        assert least <= std <= least * 1.01
