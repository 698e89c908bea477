"""Guesses of class means from public sources, against their formulas; what they may not see."""

from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.guesses import (
    ELSEWHERE,
    ClassMeans,
    NameRule,
    Sources,
    added_to,
    covariance_with,
    from_examples,
    knowing,
    means_by_name,
    of_classifier,
    open_scatter,
    scatter_within,
)
from embed.known_classes import KnownClasses
from embed.options import NONE, Knowledge
from embed.run import FitTransform
from embed.water_filling import LEAST_SHARE
from train_distributed import Privacy, release

P, NAMES = 6, ("cat", "dog", "ship")


def rows_of(names: tuple[str, ...], seed: int, each: int = 40) -> EmbeddingSet:
    """Classes whose means depend on their names alone, rows on the seed."""
    labels = np.repeat(np.arange(len(names)), each)
    means = np.stack([mean_of(name) for name in names])
    noise = np.random.default_rng(seed).standard_normal((len(labels), P))
    meta = {"class_names": list(names)}
    users = np.arange(len(labels)) % 10
    return EmbeddingSet(embeddings=means[labels] + noise, labels=labels, users=users, meta=meta)


def mean_of(name: str) -> np.ndarray:
    return 2 * np.random.default_rng(list(name.encode())).standard_normal(P)


@pytest.fixture(scope="module")
def public() -> EmbeddingSet:
    return rows_of(tuple(f"thing {k}" for k in range(30)), 0)


@pytest.fixture(scope="module")
def transform(public: EmbeddingSet) -> PublicTransform:
    return PublicTransform.fit(public, components=4)


def unit(*shape: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    vectors = torch.randn(*shape, generator=draw, dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=1)


def test_examples_give_the_posterior_of_the_class_means(transform: PublicTransform) -> None:
    scatter = open_scatter(transform.public)
    draw = torch.Generator().manual_seed(1)
    means = torch.randn(3, 4, generator=draw, dtype=torch.float64)
    counts = torch.tensor([2.0, 7.0, 0.0], dtype=torch.float64)
    found = from_examples(ClassMeans(means, counts), scatter)
    left = []
    for k, count in enumerate(counts.tolist()):
        precision = torch.linalg.inv(scatter.of_means) + count * torch.linalg.inv(scatter.within)
        pulled = torch.linalg.inv(scatter.of_means) @ scatter.mean
        pulled = pulled + count * torch.linalg.inv(scatter.within) @ means[k]
        assert torch.allclose(found.means[:, k], torch.linalg.solve(precision, pulled))
        left.append(torch.linalg.inv(precision))
    expected = torch.stack(left).mean(0) + ELSEWHERE * scatter.of_means
    assert torch.allclose(found.covariance, expected)
    again = from_examples(ClassMeans(means, counts), scatter, replace(found, source="names"))
    assert (found.trust, again.trust) == (2, 4)
    assert again.source.startswith("names, then 9 public examples of 2 classes")


def test_guesses_leave_open_what_public_classes_cannot_show(transform: PublicTransform) -> None:
    """Two public classes differ along a line, few public rows within fewer directions than q."""
    line, thin = torch.diag_embed(torch.tensor([[1.0, 0, 0, 0], [0, 2, 2, 0]]).double())
    poor = replace(transform, between_class=line, within_class=thin)
    scatter = open_scatter(poor.public)
    assert torch.allclose(scatter.of_means, line + LEAST_SHARE * (line + thin))
    assert torch.allclose(scatter.within, thin, atol=1e-5)
    means = torch.ones(3, 4, dtype=torch.float64)
    counts = torch.tensor([1.0, 1000, 0], dtype=torch.float64)
    found = from_examples(ClassMeans(means, counts), scatter)
    kept = LEAST_SHARE * 2 * counts / (LEAST_SHARE * 2 * counts + 2)  # v/(v + W/n)
    expected = scatter.mean[1] + kept * (1 - scatter.mean[1])
    assert torch.allclose(found.means[1], expected, atol=1e-5)
    assert found.covariance.isfinite().all()
    assert scatter_within(ClassMeans(means, counts, thin), scatter).isfinite().all()


def test_examples_show_how_rows_scatter_within_classes(transform: PublicTransform) -> None:
    """ν of largest density of S by brute force; the more rows say otherwise, the less is public."""
    scatter = open_scatter(transform.public)
    draw = torch.Generator().manual_seed(5)
    narrow = torch.diag(torch.tensor([4.0, 1.0, 0.2, 1.0], dtype=torch.float64))
    shares = []
    for law in (scatter.within, narrow):
        rows = torch.randn(3, 20, 4, generator=draw, dtype=torch.float64)
        rows = rows @ torch.linalg.cholesky(law).mT
        apart = (rows - rows.mean(1, keepdim=True)).flatten(0, 1)
        own = apart.mT @ apart
        found = scatter_within(ClassMeans(rows.mean(1), torch.full((3,), 20.0), own), scatter)
        logs = {}
        for weight in torch.logspace(0, 6, 61, dtype=torch.float64).tolist():
            # p(S) = p(S | W) p(W) / p(W | S) at W = I, up to what ν does not change
            scale = weight * scatter.within
            prior, after = (
                torch.distributions.Wishart(weight + 5 + more, torch.linalg.inv(of))
                for more, of in ((0, scale), (57, scale + own))
            )
            one = torch.eye(4, dtype=torch.float64)
            logs[weight] = float(prior.log_prob(one) - after.log_prob(one))
        best = max(logs, key=logs.__getitem__)
        assert torch.allclose(found, (best * scatter.within + own) / (best + 57))
        shares.append(best / (best + 57))
    assert shares[0] > 0.9
    assert shares[1] < 0.5
    bare = ClassMeans(torch.zeros(3, 4), torch.ones(3))
    assert torch.equal(scatter_within(bare, scatter), scatter.within)


def test_only_examples_of_the_classes_count(transform: PublicTransform) -> None:
    shown = rows_of((*NAMES, "fourth"), 6, each=9)
    found = means_by_name(shown, transform, ["ship", "cat", "bird"])
    features = transform(torch.from_numpy(shown.embeddings))[:, 1:].double().unflatten(0, (4, 9))
    own = features[[2, 0]]
    assert torch.allclose(found.means[:2], own.mean(1))
    assert found.counts.tolist() == [9, 9, 0]
    apart = (own - own.mean(1, keepdim=True)).flatten(0, 1)
    assert found.scatter is not None
    assert torch.allclose(found.scatter, apart.mT @ apart)
    scatter = open_scatter(transform.public)
    moved = knowing(transform, ["ship", "cat", "bird"], None, [], found)
    assert moved.within_class is not None
    assert torch.equal(moved.within_class, scatter_within(found, scatter))
    assert not torch.allclose(moved.within_class, scatter.within)
    assert moved.same_rows(transform)


def test_the_leave_one_out_error_is_that_of_rules_without_the_class() -> None:
    vectors = unit(14, 5, seed=2)
    means = vectors[:, :3] + 0.1 * unit(14, 3, seed=3)
    rule = NameRule.learned(vectors, means, 14)
    assert 0.3 < rule.explained < 1
    centre, error = means.mean(0), 0.0
    kernel = torch.exp(-torch.cdist(vectors, vectors).square() / (2 * rule.width**2))
    ridge = torch.linalg.lstsq(rule.coefficients, means - centre - kernel @ rule.coefficients)
    ridge = float(ridge.solution.diagonal().mean())
    for out in range(14):
        rest = [k for k in range(14) if k != out]
        inner = kernel[rest][:, rest] + ridge * torch.eye(13, dtype=torch.float64)
        said = kernel[out, rest] @ torch.linalg.solve(inner, (means - centre)[rest])
        error += float((means[out] - centre - said).square().sum())
    scatter = float((means - centre).square().sum())
    assert rule.explained == pytest.approx(1 - error / scatter, abs=1e-6)


def test_a_classifier_shows_the_means_of_its_classes() -> None:
    """Classes alike about their means: Σ_x w_c leads to them, up to one factor."""
    rng, classes = np.random.default_rng(7), 20
    means = rng.standard_normal((classes, P))
    labels = rng.integers(0, classes, 40_000)
    rows = means[labels] + rng.standard_normal((len(labels), P)) @ np.diag(np.arange(1, P + 1))
    within = np.diag(np.arange(1, P + 1) ** 2.0)
    weights = torch.from_numpy(3.0 * means @ np.linalg.inv(within))
    found = covariance_with(EmbeddingSet(embeddings=rows, labels=labels), weights)
    centred = torch.from_numpy(rows - rows.mean(0))
    expected = (weights - weights.mean(0)) @ (centred.mT @ centred) / len(rows)
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3)
    shown = ClassMeans(torch.from_numpy(means), torch.ones(classes))
    guessed = of_classifier(found, {c: c for c in range(12)}, shown)
    unseen = torch.from_numpy(means)[12:]
    assert (guessed[12:] - unseen).square().sum() < 0.3 * (unseen - unseen.mean(0)).square().sum()


def test_classes_of_the_encoder_s_classifier_join_where_they_explain_more(public, transform):
    """The first 30 of its 60 are public; means are linear in the names, hard to learn from 28."""
    means, vectors = ClassMeans.of(public, transform, 30), unit(60, 40, seed=8)
    named = torch.from_numpy(np.stack([mean_of(f"thing {k}") for k in range(30)]))
    weights = vectors @ torch.linalg.lstsq(vectors[:30], named).solution
    directions = covariance_with(public, weights)
    matched = tuple((c, c) for c in range(30))
    bare = Sources(30, "package", vectors[:30])
    joined = Sources(30, "package", vectors[:30], vectors, directions, matched)
    wrong = replace(joined, directions=directions.flip(0), own=vectors.flip(1))
    few = replace(joined, matched=matched[:9])
    alone, wider, kept, less = (
        cast(NameRule, sources.rule(transform, means)) for sources in (bare, joined, wrong, few)
    )
    assert alone.source == "names of 30 public classes, and none of a classifier of the encoder"
    assert wider.source == "names of 30 public classes and 30 of the encoder's classifier"
    assert wider.explained > alone.explained
    assert kept.source.endswith("as those of the encoder's classifier add nothing")
    assert torch.equal(kept.coefficients, alone.coefficients)
    assert less.source.endswith("none of a classifier of the encoder")


def test_a_file_keeps_the_guesses_under_its_hash(tmp_path, public, transform) -> None:
    shown = rows_of(NAMES, 2, 5)
    shown.save(tmp_path / "shown")
    known = added_to(Knowledge(examples=tmp_path / "shown"), transform, public, NAMES)
    for number, each in enumerate((transform, known, known)):
        each.save(tmp_path / f"{number}.safetensors")
    plain, first, second = ((tmp_path / f"{n}.safetensors").read_bytes() for n in range(3))
    assert first == second != plain
    assert PublicTransform.load(tmp_path / "0.safetensors").known is None
    again = PublicTransform.load(tmp_path / "1.safetensors")
    assert again.known is not None
    assert again.known.words == ["15 public examples of 3 classes"]
    assert again.same_knowledge(known)
    assert again.same_rows(transform)
    assert not again.same_knowledge(transform)
    with pytest.raises(ValueError, match="class names"):
        again.known.check_classes(("cat", "ship", "dog"), 3)
    with pytest.raises(ValueError, match="num_classes must be 3"):
        again.known.check_classes((), 4)


def test_public_classes_of_the_same_names_are_examples_by_themselves() -> None:
    public = rows_of((*NAMES, "bird"), 1)
    fitted = PublicTransform.fit(public, components=3)
    known = added_to(Knowledge(), fitted, public, NAMES).known
    assert known is not None
    assert known.words == ["120 public examples of 3 classes"]
    assert added_to(Knowledge(), fitted, public, ("cat", "cow")).known is None
    assert added_to(Knowledge(examples=NONE), fitted, public, NAMES).known is None
    numbered = rows_of(("0", "1", "2"), 1)
    fitted = PublicTransform.fit(numbered, components=2)
    assert added_to(Knowledge(), fitted, numbered, ("0", "1")).known is None
    assert added_to(Knowledge(), fitted, numbered, ("0", "1", "2")).known is not None


def test_a_private_picture_among_the_examples_is_refused(tmp_path, public, transform) -> None:
    private, shown = rows_of(NAMES, 3), rows_of(NAMES, 4, 5)
    shown.embeddings[7] = private.embeddings[50]
    shown.save(tmp_path / "shown")
    knowing = added_to(Knowledge(examples=tmp_path / "shown"), transform, public, NAMES)
    with pytest.raises(ValueError, match="private rows, got 1 of 120"):
        release(private, "discriminant", Privacy(1.0, 1e-5), transform=knowing)
    public.save(tmp_path / "public")
    FitTransform(
        public=tmp_path / "public", examples=tmp_path / "shown", components=3, out=tmp_path / "out"
    ).run()
    known = PublicTransform.load(tmp_path / "out" / "transform.safetensors").known
    assert isinstance(known, KnownClasses)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_examples_serve_ten_users_and_the_report_names_them(tmp_path, public, transform, epsilon):
    rows_of(NAMES, 5, 20).save(tmp_path / "shown")
    knowing = added_to(Knowledge(examples=tmp_path / "shown"), transform, public, NAMES)
    split = (np.arange(300) % 3 == 0).astype(np.uint8)
    data = replace(rows_of(NAMES, 6, 100), split=split)
    more = {"noise": "float", "generator": torch.Generator().manual_seed(0)}
    found = release(data, "discriminant", Privacy(epsilon, 1e-5), transform=knowing, **more)
    assert found.report["test_accuracy"] > 0.75
    assert found.report.known_before == ["60 public examples of 3 classes"]
    believed = found.report.believed
    assert believed is not None
    assert sum(believed.values()) == pytest.approx(1)
    swapped = replace(data, meta={"class_names": ["dog", "cat", "ship"]})
    with pytest.raises(ValueError, match="class names must be those"):
        release(swapped, "discriminant", Privacy(epsilon, 1e-5), transform=knowing)


def test_what_names_explain_is_printed(public, transform, monkeypatch, capsys) -> None:
    """Names that are the class means explain them; random ones, or all alike, say nothing."""
    means = ClassMeans.of(public, transform, 30).means
    said = dict(zip(public.meta["class_names"], torch.nn.functional.normalize(means), strict=True))
    odd = {name: unit(1, 99, seed=k)[0] for k, name in enumerate(said)}
    apart, same = list(said.values())[:3], [next(iter(said.values()))] * 3
    for vectors, own in ((said, apart), (odd, list(odd.values())[:3]), (said, same)):
        telling = own is apart
        known_names = vectors | dict(zip(NAMES, own, strict=True))
        monkeypatch.setattr(
            "embed.guesses.name_vectors",
            lambda names, encoder, known=known_names: torch.stack([known[name] for name in names]),
        )
        known = added_to(Knowledge(text_encoder="package"), transform, public, NAMES).known
        printed = capsys.readouterr().err
        assert ("names say nothing here" in printed) != telling
        assert "by leaving out one of the names of 30 public classes" in printed
        assert (known is not None) == telling
