"""A release is had for any prior: scores move by the logarithms, and nothing else changes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from embed import EmbeddingSet
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.class_prior import ClassPrior, prior_shift, tempered
from train_distributed.one_shot.metrics import brief
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.report_file import MEASURED

GIVEN = (0.2, 0.3, 0.5)
PRIORS: tuple[ClassPrior, ...] = ("equal", "private", GIVEN)


def rows_of(n: int = 2400) -> EmbeddingSet:
    """Rows of three classes, 6:3:1, that lie close together; every fourth is for testing."""
    draw = np.random.default_rng(0)
    labels = draw.choice(3, n, p=[0.6, 0.3, 0.1])
    rows = np.eye(3, 6)[labels] + draw.standard_normal((n, 6))
    return EmbeddingSet(
        embeddings=rows.astype(np.float32),
        labels=labels,
        users=np.arange(n) // 4 % 20,
        split=(np.arange(n) % 4 == 3).astype(np.uint8),
        meta={"class_names": ["cat", "dog", "owl"]},
    )


ROWS = rows_of()


def made(method: str = "discriminant", epsilon: float = 1.0, **options: Any) -> Release:
    draw = torch.Generator().manual_seed(0)
    given = {"noise": "float", "generator": draw, **options}
    return release(ROWS, method, Privacy(epsilon, 1e-5), **given)


@pytest.fixture(scope="module")
def model() -> Release:
    return made()


def test_equal_shares_are_the_default(model: Release) -> None:
    assert (model.prior, model.report["prior"]) == ("equal", "equal")
    assert model.class_shares is not None
    assert model.class_shares.tolist() == pytest.approx([0.6, 0.3, 0.1], abs=0.1)
    for epsilon in (0.1, 1.0):
        assert made(epsilon=epsilon).prior == "equal"


@pytest.mark.parametrize("prior", PRIORS[1:])
def test_scores_differ_by_the_log_ratio(model: Release, prior: ClassPrior) -> None:
    """Of tempered shares: T log π."""
    assert model.temperature != 1
    assert model.class_shares is not None
    shares = model.class_shares.numpy() if prior == "private" else np.array(GIVEN)
    powers = shares**model.temperature
    moved = (
        model.with_prior(prior).scores(ROWS.embeddings) - model.scores(ROWS.embeddings)
    ).numpy()
    wanted = np.log(powers / powers.sum()) - np.log(1 / 3)
    assert np.abs(moved - wanted).max() < 1e-12
    again = model.with_prior(prior).with_prior("equal")
    assert torch.allclose(again.weights, model.weights, rtol=0, atol=1e-12)
    assert torch.equal(again.weights[1:], model.weights[1:])
    assert model.with_prior("equal") is model


def test_a_prior_is_as_confident_as_the_scores() -> None:
    """softmax(s/T + log π) is softmax((s + log π^T)/T)."""
    shares = torch.tensor([0.8, 0.2]).double()
    assert tempered(shares, 0.5).tolist() == pytest.approx([2 / 3, 1 / 3])
    for temperature in (0.1, 1.0, 3.0):
        scores = torch.tensor([0.3, -1.0]).double()
        moved = (scores + tempered(shares, temperature).log()) / temperature
        wanted = torch.softmax(scores / temperature + shares.log(), 0)
        assert torch.allclose(torch.softmax(moved, 0), wanted)
    equal = torch.full((4,), 0.25).double()
    assert tempered(equal, 0.5).tolist() == pytest.approx([0.25] * 4)
    plain = prior_shift("private", (0.4, 0.6), shares, 1.0)
    assert plain.tolist() == pytest.approx(np.log([0.8 / 0.4, 0.2 / 0.6]).tolist())


@pytest.mark.parametrize("options", [{}, {"rounds": 2}, {"moments": "none"}])
@pytest.mark.parametrize("prior", PRIORS[1:])
def test_a_model_moved_is_the_model_made(prior: ClassPrior, options: dict[str, Any]) -> None:
    """One prior is chosen before the sum, the other after it; the noise is the same."""
    moved, meant = made(**options).with_prior(prior), made(prior=prior, **options)
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
    typed = model.report.test_metrics
    assert typed is not None
    assert typed.by_prior is not None
    assert typed.by_prior["private"].accuracy == private["accuracy"]


def test_both_are_printed_where_they_differ(model: Release) -> None:
    metrics = model.report["test_metrics"]
    said = dict(brief(metrics))
    assert said["with prior private"].startswith("accuracy 0.")
    assert "with prior equal" in said
    same = metrics | {"by_prior": dict.fromkeys(("equal", "private"), metrics["by_prior"]["equal"])}
    assert "with prior equal" not in dict(brief(same))


@pytest.mark.parametrize("method", ["softmax", "svm", "logistic"])
def test_a_head_has_one_prior_and_says_so(method: str) -> None:
    head = made(method)
    assert (head.prior, head.class_shares) == ("equal", None)
    assert head.report.other_priors is not None
    assert "carries the prior of its rows inside" in head.report.other_priors
    assert "by_prior" not in head.report["test_metrics"]
    assert head.with_prior("equal") is head
    with pytest.raises(ValueError, match=r"prior must be the model's own, 'equal' .*inside.* got"):
        head.with_prior("private")


@pytest.mark.parametrize("prior", ["flat", (0.5, 0.5), (0.5, 0.4, 0.2)])
def test_no_prior_is_refused(model: Release, prior: Any) -> None:
    with pytest.raises(ValueError, match="prior must"):
        model.with_prior(prior)


@pytest.mark.parametrize("prior", PRIORS)
def test_shares_and_prior_are_saved_and_loaded(
    model: Release, prior: ClassPrior, tmp_path: Path
) -> None:
    moved = model.with_prior(prior)
    moved.save(tmp_path / "model")
    loaded = Release.load(tmp_path / "model")
    assert torch.equal(shares_in(loaded), shares_in(model))
    assert loaded.prior == prior
    again = loaded.with_prior("equal").weights
    assert torch.equal(again, moved.with_prior("equal").weights)
    made("softmax").save(tmp_path / "head")
    head = Release.load(tmp_path / "head")
    assert (head.class_shares, head.prior) == (None, "equal")
    with safe_open(tmp_path / "head" / "model.safetensors", "pt") as file:
        assert "class_shares" not in file.keys()  # noqa: SIM118


def rewrite(path: Path, change: Callable[[dict[str, Tensor], dict[str, str]], None]) -> None:
    with safe_open(path, "pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change(tensors, metadata)
    save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        (torch.tensor([0.5, 0.5]).double(), r"class_shares must be float \(3,\), got .*\(2,\)"),
        (torch.tensor([[0.2, 0.3, 0.5]]).double(), r"class_shares must be float \(3,\)"),
        (torch.tensor([1, 1, 1]), r"class_shares must be float \(3,\), got torch.int64"),
        (torch.tensor([0.5, 0.5, 0.0]).double(), "class_shares must be > 0, got 0"),
        (torch.tensor([1.5, -0.25, -0.25]).double(), "class_shares must be > 0, got -0.25"),
        (torch.tensor([torch.nan, 0.5, 0.5]).double(), "class_shares must be > 0, got nan"),
        (torch.tensor([torch.inf, 0.5, 0.5]).double(), "class_shares must have the sum 1, got inf"),
        (torch.tensor([0.3, 0.3, 0.3]).double(), r"class_shares must have the sum 1, got 0\.9"),
        (torch.tensor([0.2, 0.3, 0.500002]).double(), "class_shares must have the sum 1"),
    ],
)
def test_damaged_shares_are_refused(
    model: Release, shares: Tensor, words: str, tmp_path: Path
) -> None:
    model.save(tmp_path / "model")
    where = tmp_path / "model" / "model.safetensors"
    rewrite(where, lambda tensors, _: tensors.update(class_shares=shares))
    with pytest.raises(ValueError, match=rf"model\.safetensors.*{words}"):
        Release.load(tmp_path / "model")


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        ('"flat"', "prior must be one of"),
        ("[0.5, 0.5]", "3 shares"),
        ("{", "prior"),
        ("1", "prior"),
    ],
)
def test_a_damaged_prior_is_refused(model: Release, prior: str, words: str, tmp_path: Path) -> None:
    model.save(tmp_path / "model")
    where = tmp_path / "model" / "model.safetensors"
    rewrite(where, lambda _, metadata: metadata.update(prior=prior))
    with pytest.raises(ValueError, match=rf"model\.safetensors.*{words}"):
        Release.load(tmp_path / "model")


def test_a_model_that_knows_no_prior_of_its_own_is_not_moved(model: Release) -> None:
    with pytest.raises(ValueError, match="prior must be the model's own, unknown"):
        replace(model, prior=None).with_prior("equal")
