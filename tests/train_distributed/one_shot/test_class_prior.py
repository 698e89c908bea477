"""Class priors: what each kind of method makes of them, moved models, and files of shares."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.one_shot.builders import embedded, made, one_user, simulated
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.blind_averaging import HEADS, AveragedHeads, TrainedHeads
from train_distributed.one_shot.class_prior import (
    ClassPrior,
    checked_prior,
    read_shares,
    shares_of,
)
from train_distributed.one_shot.metrics import brief
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.report_file import MEASURED
from train_distributed.one_shot.statistic import Chunk, NoisedSum
from train_distributed.partition import split

CONSTANT, P = 0.5, 6
CLIP = math.sqrt(1 + CONSTANT**2)
NAMES = ("cat", "dog", "owl")
WITH_PRIOR = ("discriminant", "softmax", "logistic")


def rows_of(n: int, shares: list[float], seed: int = 0, gap: float = 1.0) -> EmbeddingSet:
    """Gaussian classes off the origin; every fourth row is for testing; the classes are public."""
    rng, every = np.random.default_rng(seed), np.arange(n)
    means = gap * np.random.default_rng(9).standard_normal((len(shares), P)) + 0.5
    labels = rng.choice(len(shares), n, p=shares)
    x = means[labels] + rng.standard_normal((n, P))
    return embedded(x, labels, len(shares), users=every % 40, test=every // 40 % 4 == 3)


@pytest.fixture(scope="module")
def transform() -> PublicTransform:
    return PublicTransform.fit(
        rows_of(4000, [0.1] * 10, 1, gap=2.0),
        constant=CONSTANT,
        clip_quantile=0.9,
    )


@pytest.mark.parametrize("name", WITH_PRIOR)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_equal_shares_keep_a_class_of_a_tenth(transform, name, epsilon):
    """Noise and ridge pull scores to the shares: without a prior the larger class is all there is.

    100 users x 40 rows in their proportion; the bar is far from 50, where a constant stands.
    """
    data = rows_of(5400, [0.9, 0.1], 2, gap=0.8)
    more: dict[str, Any] = {"l2_reg": 0.03} if name in ("softmax", "logistic") else {}
    found = []
    for seed in range(3):
        own = simulated(data, name, epsilon, seed, transform=transform, prior="equal", **more)
        assert own.report["prior"] == "equal"
        assert own.report["class_prior"] == {"a": 0.5, "b": 0.5}
        found.append(measure(own, data)["balanced_accuracy"])
    assert np.mean(found) > (0.70 if epsilon == 1.0 else 0.76)


def test_probabilities_are_calibrated_to_the_prior(transform: PublicTransform) -> None:
    """Where the model is used classes are equal, though 85 % of the private rows are of one.

    Raw coordinates, which the clip spares: rows that all are as long are no Gaussian classes.
    """
    data, used = rows_of(6000, [0.85, 0.15], 5, 0.6), rows_of(6000, [0.5, 0.5], 6, 0.6)
    method = made("discriminant", transform, 2, prior="equal")
    own = release(data, method, Privacy(1e3, 1e-5), transform=transform, noise="float")
    sure = own.predict_proba(used.embeddings)[:, 1].numpy()
    for low, high in ((0.05, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 0.95)):
        held = (sure >= low) & (sure < high)
        assert held.sum() > 100
        assert abs(used.labels[held].mean() - sure[held].mean()) < 0.08


def head_method(name: str, prior: Any = "equal", l2_reg: float = 0.05) -> TrainedHeads:
    head = HEADS[name](num_classes=3, l2_reg=l2_reg, clip_norm=CLIP)
    return TrainedHeads(head=head, dim=4, prior=prior, constant=CONSTANT)


def mean_of(heads: TrainedHeads, total: Tensor, rows: int) -> Tensor:
    return AveragedHeads(statistic=heads).fit(NoisedSum(total, rows, 0.0)).weights


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
    x = torch.tensor([CONSTANT, 1.0, 0.0, 0.0], dtype=torch.float64).repeat(2, 40, 1)
    x[1, -1, 1] = -1.0  # two users alike but for their last record, whose row is opposite
    y = torch.zeros(2, 40, dtype=torch.int64)
    chunk = Chunk(torch.arange(2), x, y, torch.tensor([40, 40]))
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
    found = {}
    for prior in ("equal", "private"):
        method = head_method(name, prior, l2_reg=1.0)
        weights = mean_of(method, method.submit(one_user(x.double(), y))[0], 600)
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
    order = torch.repeat_interleave(torch.arange(3), torch.tensor([20, 30, 50]))
    alone = replace(method, prior="private")
    expected = mean_of(alone, alone.submit(one_user(x, order))[0], 100)
    assert torch.allclose(mean_of(method, total, 100), expected, atol=3e-4)  # what solvers leave


# Releases

GIVEN = (0.2, 0.3, 0.5)
PRIORS: tuple[ClassPrior, ...] = ("equal", "private", GIVEN)


def three(n: int = 2400) -> EmbeddingSet:
    """Rows of three classes, 6:3:1, that lie close together; every fourth is for testing."""
    draw, every = np.random.default_rng(0), np.arange(n)
    labels = draw.choice(3, n, p=[0.6, 0.3, 0.1])
    x = np.eye(3, 6)[labels] + draw.standard_normal((n, 6))
    return embedded(x, labels, 3, users=every // 4 % 20, test=every % 4 == 3)


ROWS = three()


def released(method: str = "discriminant", epsilon: float = 1.0, **options: Any) -> Release:
    return simulated(ROWS, method, epsilon, **options)


@pytest.fixture(scope="module")
def model() -> Release:
    return released()


@pytest.mark.parametrize("prior", PRIORS[1:])
def test_scores_differ_by_the_log_ratio(model: Release, prior: ClassPrior) -> None:
    """Of tempered shares: T log π."""
    assert (model.prior, model.report["prior"]) == ("equal", "equal")
    assert model.temperature != 1
    assert model.class_shares is not None
    shares = model.class_shares.numpy() if prior == "private" else np.array(GIVEN)
    powers = shares**model.temperature
    scores = [each.scores(ROWS.embeddings) for each in (model.with_prior(prior), model)]
    moved = (scores[0] - scores[1]).numpy()
    wanted = np.log(powers / powers.sum()) - np.log(1 / 3)
    assert np.abs(moved - wanted).max() < 1e-12
    again = model.with_prior(prior).with_prior("equal")
    assert torch.allclose(again.weights, model.weights, rtol=0, atol=1e-12)
    assert torch.equal(again.weights[1:], model.weights[1:])
    assert model.with_prior("equal") is model


@pytest.mark.parametrize("options", [{}, {"rounds": 2}, {"moments": False}])
@pytest.mark.parametrize("prior", PRIORS[1:])
def test_a_model_moved_is_the_model_made(prior: ClassPrior, options: dict[str, Any]) -> None:
    """One prior is chosen before the sum, the other after it; the noise is the same."""
    moved, meant = released(**options).with_prior(prior), released(prior=prior, **options)
    assert torch.allclose(moved.weights, meant.weights, rtol=1e-9, atol=1e-12)
    assert moved.prior == meant.prior == prior
    assert moved.report.class_prior == pytest.approx(meant.report.class_prior)
    assert moved.report.prior == meant.report.prior
    assert moved.report.learned_shares == pytest.approx(meant.report.learned_shares)
    assert not set(MEASURED) & set(moved.report)
    assert torch.equal(shares_in(moved), shares_in(meant))


def shares_in(model: Release) -> Tensor:
    assert model.class_shares is not None
    return model.class_shares


def test_metrics_are_those_of_each_model(model: Release) -> None:
    metrics = model.report["test_metrics"]
    assert list(metrics["by_prior"]) == ["equal", "private"]
    for prior, found in metrics["by_prior"].items():
        alone = measure(model.with_prior(prior), ROWS)
        assert found == {name: alone[name] for name in ("accuracy", "balanced_accuracy")}
    assert metrics["by_prior"]["equal"]["accuracy"] == metrics["accuracy"]
    equal, private = metrics["by_prior"].values()
    assert private["accuracy"] > equal["accuracy"]
    assert equal["balanced_accuracy"] > private["balanced_accuracy"]
    assert {"with prior equal", "with prior private"} <= dict(brief(metrics)).keys()
    typed = model.report.test_metrics
    assert typed is not None
    assert typed.by_prior is not None
    assert typed.by_prior["private"].accuracy == private["accuracy"]


@pytest.mark.parametrize("method", ["softmax", "svm", "logistic"])
def test_a_head_has_one_prior_and_says_so(method: str) -> None:
    head = released(method)
    assert (head.prior, head.class_shares) == ("equal", None)
    assert head.report.other_priors is not None
    assert "carries the prior of its rows inside" in head.report.other_priors
    assert "by_prior" not in head.report["test_metrics"]
    assert head.with_prior("equal") is head
    with pytest.raises(ValueError, match=r"prior must be the model's own, 'equal' .*inside.* got"):
        head.with_prior("private")


@pytest.mark.parametrize("prior", PRIORS)
def test_shares_and_prior_are_saved_and_loaded(model, prior, tmp_path):
    moved = model.with_prior(prior)
    moved.save(tmp_path / "model")
    loaded = Release.load(tmp_path / "model")
    assert torch.equal(shares_in(loaded), shares_in(model))
    assert loaded.prior == prior
    again = loaded.with_prior("equal").weights
    assert torch.equal(again, moved.with_prior("equal").weights)
    released("softmax").save(tmp_path / "head")
    head = Release.load(tmp_path / "head")
    assert (head.class_shares, head.prior) == (None, "equal")
    with safe_open(tmp_path / "head" / "model.safetensors", "pt") as file:
        assert "class_shares" not in file.keys()  # noqa: SIM118


def test_no_model_is_moved_to_what_is_no_prior_nor_from_an_unknown_one(model: Release) -> None:
    for prior in ("flat", (0.5, 0.5), (0.5, 0.4, 0.2)):
        with pytest.raises(ValueError, match="prior must"):
            model.with_prior(prior)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="prior must be the model's own, unknown"):
        replace(model, prior=None).with_prior("equal")


# Files


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[0.2, 0.3, 0.5]", "JSON object"),
        ('{"cat": 0.5, "dog": 0.5}', "'owl'"),
        ('{"cat": 0.2, "dog": 0.3, "owl": 0.4, "emu": 0.1}', "'emu'"),
        ('{"cat": 0.2, "cat": 0.3, "dog": 0.3, "owl": 0.2}', "'cat' twice"),
        ('{"0": 0.2, "1": 0.3, "owl": 0.5}', "'cat'"),
        ('{"cat": 0.2, "dog": 0.3, "owl": NaN}', "got nan"),
        ('{"cat": 0.2, "dog": 0.3, "owl": {"a": 1}}', "shares > 0"),
        ('{"cat": 1, "dog": 1, "owl": 1}', "sum 1, got 3"),
        ("[" * 100_000, ""),
    ],
)
def test_files_that_are_no_prior_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "prior.json").write_text(text)
    with pytest.raises(ValueError, match=r"prior must be .*prior\.json") as caught:
        read_shares(tmp_path / "prior.json", NAMES)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"prior must be .*missing\.json"):
        read_shares(tmp_path / "missing.json", NAMES)


def test_a_file_may_name_classes_or_number_them(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({"owl": 0.5, "cat": 0.2, "dog": 0.3}))
    assert read_shares(path, NAMES) == (0.2, 0.3, 0.5)
    path.write_text(json.dumps({"2": 0.5, "0": 0.2, "1": 0.3}))
    assert read_shares(path, NAMES) == (0.2, 0.3, 0.5)
    assert checked_prior([0.5, 0.5], 2) == (0.5, 0.5)
    exact = shares_of((0.5, 0.5000001), torch.ones(2).double())
    assert float(exact.sum()) == 1.0
