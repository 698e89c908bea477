"""Class priors: the words, the file, and what each kind of method makes of them."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.train_distributed.one_shot.fitting import fitted
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import SoftmaxHead
from train_distributed import Privacy, release
from train_distributed.one_shot.blind_averaging import HEADS, AveragedHeads, TrainedHeads
from train_distributed.one_shot.class_prior import ClassPrior
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.statistic import Chunk, NoisedSum
from train_distributed.partition import split

CONSTANT, P = 0.5, 6
CLIP = math.sqrt(1 + CONSTANT**2)
NAMES = ("cat", "dog", "owl")
WITH_PRIOR = ("discriminant", "softmax", "logistic")


def rows_of(n: int, shares: list[float], seed: int = 0, gap: float = 1.0) -> EmbeddingSet:
    """Gaussian classes off the origin; every fourth row is for testing; the classes are public."""
    rng = np.random.default_rng(seed)
    means = gap * np.random.default_rng(9).standard_normal((len(shares), P)) + 0.5
    labels = rng.choice(len(shares), n, p=shares)
    rows = (means[labels] + rng.standard_normal((n, P))).astype(np.float32)
    users = np.arange(n) % 40
    split = (np.arange(n) // 40 % 4 == 3).astype(np.uint8)
    names = {"class_names": [str(k) for k in range(len(shares))]}
    return EmbeddingSet(embeddings=rows, labels=labels, split=split, users=users, meta=names)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    return PublicTransform.fit(
        rows_of(4000, [0.1] * 10, 1, gap=2.0),
        constant=CONSTANT,
        clip_quantile=0.9,
    )


@pytest.mark.parametrize("name", WITH_PRIOR)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_equal_shares_keep_a_class_of_a_tenth(
    transform: PublicTransform, name: str, epsilon: float
) -> None:
    """Noise and ridge pull scores to the shares: without a prior the larger class is all there is.

    100 users x 40 rows in their proportion; the bar is far from 50, where a constant stands.
    """
    data = rows_of(5400, [0.9, 0.1], 2, gap=0.8)
    more: dict[str, Any] = {"l2_reg": 0.03} if name in ("softmax", "logistic") else {}
    found = []
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        more |= {"noise": "float", "generator": draw, "prior": "equal"}
        made = release(data, name, Privacy(epsilon, 1e-5), transform=transform, **more)
        assert made.report["prior"] == "equal"
        assert made.report["class_prior"] == {"0": 0.5, "1": 0.5}
        found.append(measure(made, data)["balanced_accuracy"])
    assert np.mean(found) > (0.70 if epsilon == 1.0 else 0.76)


def weighted_lda(x: np.ndarray, y: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """(n,) classes by the textbook: pooled covariance of the rows as they are, shares as given."""
    means = np.stack([x[y == k].mean(0) for k in range(len(shares))])
    pooled = sum(np.cov(x[y == k].T, bias=True) * np.mean(y == k) for k in range(len(shares)))
    solved = np.linalg.solve(pooled, means.T)
    return (x @ solved - 0.5 * (means.T * solved).sum(0) + np.log(shares)).argmax(1)


@pytest.mark.parametrize("moments", [True, False])
def test_log_shares_are_what_a_prior_adds(transform: PublicTransform, moments: bool) -> None:
    data = rows_of(2000, [0.6, 0.3, 0.1], 4)
    x, y = transform(data.embeddings), torch.from_numpy(data.labels)
    chunk = Chunk(torch.zeros(1).long(), x[None], y[None], torch.tensor([len(x)]))
    equal = build_method("discriminant", transform, 3, {"prior": "equal", "moments": moments})
    total = equal.statistic.submit(chunk)[0]
    plain = fitted(equal, total, len(x), 0.0)
    cases: tuple[tuple[ClassPrior, Tensor], ...] = (
        ((0.2, 0.3, 0.5), torch.tensor([0.2, 0.3, 0.5])),
        ("private", torch.bincount(y) / len(y)),
    )
    for prior, shares in cases:
        method = build_method("discriminant", transform, 3, {"prior": prior, "moments": moments})
        made = method.fit(NoisedSum(total, len(x), 0.0))
        shift = (made.weights - plain) / made.temperature
        assert shift[1:].abs().max() < 1e-12
        moved = CONSTANT * shift[0]
        assert torch.allclose(moved - moved[0], (shares / shares[0]).log().double(), atol=1e-6)


def test_probabilities_are_calibrated_to_the_prior(
    transform: PublicTransform,
) -> None:
    """Where the model is used classes are equal, though 85 % of the private rows are of one.

    Raw coordinates, which the clip spares: rows that all are as long are no Gaussian classes.
    """
    data, used = rows_of(6000, [0.85, 0.15], 5, 0.6), rows_of(6000, [0.5, 0.5], 6, 0.6)
    method = build_method("discriminant", transform, 2, {"prior": "equal"})
    made = release(data, method, Privacy(1e3, 1e-5), transform=transform, noise="float")
    sure = made.predict_proba(used.embeddings)[:, 1].numpy()
    for low, high in ((0.05, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95)):
        held = (sure >= low) & (sure < high)
        assert held.sum() > 100
        assert abs(used.labels[held].mean() - sure[held].mean()) < 0.08


def head_method(name: str, prior: Any = "equal", l2_reg: float = 0.05) -> TrainedHeads:
    head = HEADS[name](num_classes=3, l2_reg=l2_reg, clip_norm=CLIP)
    return TrainedHeads(head=head, dim=4, prior=prior, constant=CONSTANT)


def pair_of(same_label: bool, draw: torch.Generator, n: int) -> Chunk:
    """Two users alike but for their last record, of full length, opposite or of another label."""
    features = torch.randn(n, 3, generator=draw, dtype=torch.float64)
    features /= features.norm(dim=1, keepdim=True)
    other = features.clone()
    other[-1] = -features[-1] if same_label else features[-1]
    x = torch.stack([features, other])
    x = torch.cat([torch.full((2, n, 1), CONSTANT, dtype=torch.float64), x], 2)
    y = torch.zeros(2, n, dtype=torch.int64)
    y[1, -1] = 0 if same_label else 1
    return Chunk(torch.arange(2), x, y, torch.full((2,), n))


@pytest.mark.parametrize("name", ["softmax", "logistic", "svm"])
def test_the_sum_of_features_is_charged(name: str) -> None:
    """An opposite row of full length moves it by all that is stated for it, and no less is."""
    sizes = torch.tensor([40])
    joint, alone = head_method(name), head_method(name, "private")
    assert joint.dimension == alone.dimension + 3
    for stated, of_head in (
        (joint.record_sensitivity(sizes), alone.record_sensitivity(sizes)),
        (float(joint.user_sensitivity(sizes)), float(alone.user_sensitivity(sizes))),
    ):
        assert stated == pytest.approx(math.sqrt(1.1) * of_head, rel=2e-3)
    chunk = pair_of(True, torch.Generator().manual_seed(0), 40)
    sent = (joint.submit(chunk) * joint.scale)[:, -3:]
    moved = float((sent[0] - sent[1]).norm()) / math.sqrt(joint.compositions)
    left = math.sqrt(joint.record_sensitivity(sizes) ** 2 - alone.record_sensitivity(sizes) ** 2)
    assert moved <= left * (1 + 1e-7)
    assert moved == pytest.approx(left, rel=1e-6)
    removed = joint.zero_out_sensitivity(sizes) ** 2 - alone.zero_out_sensitivity(sizes) ** 2
    assert math.sqrt(removed) == pytest.approx(moved / 2, rel=1e-6)


@pytest.mark.parametrize("name", ["softmax", "logistic", "svm"])
def test_what_all_rows_share_does_not_decide(name: str) -> None:
    """Rows far from the public centre, heavily regularised: few classes win without the mean."""
    draw = torch.Generator().manual_seed(1)
    y = torch.arange(3).repeat(200)
    apart = torch.tensor([[0.2, 0.2, 0.0], [0.0, 0.2, 0.2], [0.0, 0.0, 0.0]])
    x = 0.5 + apart[y] + 0.05 * torch.randn(600, 3, generator=draw)
    x = torch.cat([torch.full((600, 1), CONSTANT), 0.99 * x / x.norm(dim=1).max()], 1)
    chunk = Chunk(torch.zeros(1).long(), x.double()[None], y[None], torch.tensor([600]))
    found = {}
    for prior in ("equal", "private"):
        method = head_method(name, prior, l2_reg=1.0)
        total = method.submit(chunk)[0]
        weights = AveragedHeads(statistic=method).fit(NoisedSum(total, 600, 0.0)).weights
        found[prior] = float(((x.double() @ weights).argmax(1) == y).double().mean())
    assert found["private"] < 0.7
    assert found["equal"] > 0.9


@pytest.mark.parametrize("name", ["softmax", "logistic"])
@pytest.mark.parametrize("scheme", ["iid", "one-class"])
def test_rows_without_features_end_at_the_wanted_shares(name: str, scheme: str) -> None:
    """Whoever holds which rows: the intercepts are those of the wanted shares."""
    counts = torch.tensor([60, 30, 10])
    y = torch.repeat_interleave(torch.arange(3), counts)
    x = torch.zeros(100, 4, dtype=torch.float64)
    x[:, 0] = CONSTANT
    wanted = (0.2, 0.3, 0.5)
    method = head_method(name, wanted)
    partition = split(y, 10, scheme, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(method.dimension, dtype=torch.float64)
    for bucket in partition.buckets(100):
        chunk = Chunk(bucket.users, x[bucket.rows], y[bucket.rows], bucket.counts)
        total += method.submit(chunk).sum(0)
    weights = AveragedHeads(statistic=method).fit(NoisedSum(total, 100, 0.0)).weights
    order = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 30, 50]))
    everyone = Chunk(torch.zeros(1).long(), x[None], order[None], torch.tensor([100]))
    alone = replace(method, prior="private")
    plain = NoisedSum(alone.submit(everyone)[0], 100, 0.0)
    expected = AveragedHeads(statistic=alone).fit(plain).weights
    assert torch.allclose(weights, expected, atol=3e-4)  # what solvers leave


def test_a_head_that_hardly_regularises_learns_the_logarithms() -> None:
    head = SoftmaxHead(num_classes=3, l2_reg=1e-6, clip_norm=CLIP)
    method = TrainedHeads(head=head, dim=2, prior="equal", constant=CONSTANT)
    shares: Tensor = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    scores = CONSTANT * AveragedHeads(statistic=method).taught_by(shares)
    assert torch.allclose(torch.softmax(scores, 0), shares, atol=1e-4)
