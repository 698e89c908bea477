"""A private evaluation from rows to report."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet
from embed.hold_out import with_held_out
from train_distributed import Privacy, Release
from train_distributed.one_shot.release import measure
from train_distributed.one_shot.request import FaultInjection
from train_distributed.partition import split
from train_distributed.privacy import mechanism
from train_distributed.released.evaluate import evaluate, summed

NONE = Privacy(float("inf"), 1e-5)
SOME = Privacy(1.0, 1e-5)


@pytest.fixture
def rows(released: Release) -> EmbeddingSet:
    """400 rows of 20 users, a quarter of every user's held out."""
    draw = np.random.default_rng(3)
    x = draw.standard_normal((400, 6)).astype(np.float32) + 5
    labels = released.predict(x).numpy()
    labels[::4] = draw.integers(0, 3, 100)
    users = np.arange(400) % 20
    meta = {"class_names": list(released.class_names)}
    return with_held_out(EmbeddingSet(embeddings=x, labels=labels, users=users, meta=meta), 0.25)


def test_without_noise_it_counts(released: Release, rows: EmbeddingSet) -> None:
    found = evaluate(released, rows, NONE)
    wanted = torch.tensor(measure(released, rows, 2)["confusion"])
    counted = found.estimates
    assert torch.equal(counted.confusion, wanted.double())
    assert counted.accuracy.estimate == pytest.approx(float(wanted.trace() / wanted.sum()))
    recalls = (wanted.diagonal() / wanted.sum(1)).tolist()
    assert [each.estimate for each in counted.recalls] == pytest.approx(recalls)
    assert counted.balanced_accuracy.estimate == pytest.approx(np.mean(recalls))
    assert found.report["rows"] == 100
    assert not found.report["suitable_for_release"]
    json.dumps(found.report, allow_nan=False)


def test_one_sum_evaluates_two_priors(released: Release, rows: EmbeddingSet) -> None:
    """At one ε both have √2 times the noise; without noise each is what it is by itself."""
    shares = torch.tensor([0.9, 0.07, 0.03], dtype=torch.float64)
    movable = replace(released, prior="equal", class_shares=shares)
    found = evaluate(movable, rows, NONE, prior="both").report
    assert list(found["by_prior"]) == ["equal", "private"]
    for prior in ("equal", "private"):
        alone = evaluate(movable, rows, NONE, prior=prior).report
        assert (alone["prior"], "by_prior" in alone) == (prior, False)
        counted = measure(movable.with_prior(prior), rows, 2)["confusion"]
        assert alone["confusion"] == found["by_prior"][prior]["confusion"] == counted
        own = evaluate(movable.with_prior(prior), rows, NONE, prior="both").report
        assert (own["prior"], own["confusion"]) == (prior, counted)
    assert found["by_prior"]["private"]["confusion"] != found["confusion"]
    shared, single = (summed(movable, rows, SOME, prior=prior) for prior in ("both", "private"))
    assert shared.noise_std == pytest.approx(2**0.5 * single.noise_std, rel=1e-3)
    assert shared.report["sensitivity"] == pytest.approx(2**0.5 * single.report["sensitivity"])
    assert shared.report["epsilon"] == single.report["epsilon"]
    report = evaluate(movable, rows, SOME, prior="both").report
    for share in report["by_prior"].values():
        assert 0 <= share["balanced_accuracy"]["low"] <= share["balanced_accuracy"]["high"] <= 1
    json.dumps(report, allow_nan=False)


def test_of_a_private_one_the_report_says_what_holds(released: Release, rows) -> None:
    report = evaluate(released, rows, SOME).report
    assert report["suitable_for_release"]
    assert (report["noise"], report["users"], report["rows"]) == ("discrete", 20, 100)
    assert "do not add up" in report["with_the_training"]
    for name in ("accuracy", "balanced_accuracy", "expected_calibration_error"):
        assert 0 <= report[name]["low"] <= report[name]["high"] <= 1
    drowned = [share for share in report["recall"].values() if share.get("too_few_rows")]
    assert drowned  # a third of 100 rows in noise of this size
    assert all(share["estimate"] is None for share in drowned)


def test_the_noise_in_the_sum_is_what_is_stated(released: Release, rows: EmbeddingSet) -> None:
    bare = summed(released, rows, NONE).opened
    found = [summed(released, rows, SOME, noise="float") for _ in range(60)]
    assert all(each.noise_std == found[0].noise_std for each in found)
    noise = torch.stack([each.opened - bare for each in found]) / found[0].noise_std
    assert noise.std().item() == pytest.approx(1, rel=0.06)
    of = found[0].report  # 10 of 20 users are honest, and all 20 add theirs
    stated = of["noise_multiplier"] * of["sensitivity"] * 2**0.5
    assert found[0].noise_std == pytest.approx(stated, rel=1e-6)
    exact = summed(released, rows, SOME)
    assert exact.noise_std == pytest.approx(found[0].noise_std, rel=1e-3)
    assert exact.noise_std >= found[0].noise_std


def test_nothing_is_drawn_before_it_is_counted(released: Release, rows, monkeypatch) -> None:
    def stop(noise: Any) -> None:
        assert noise["noise"] == "discrete"
        assert noise["sigma"] / noise["sensitivity"] == pytest.approx(3.7306, rel=1e-3)
        raise ValueError("the limit is reached")

    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    with pytest.raises(ValueError, match="the limit is reached"):
        evaluate(released, rows, SOME, reserve=stop)


def test_rows_that_were_trained_on(released: Release, rows: EmbeddingSet) -> None:
    x = np.array(rows.embeddings)
    train, held = np.flatnonzero(rows.split == 0), np.flatnonzero(rows.split == 2)
    x[held[:3]] = x[train[:3]].astype(np.float16)  # stored in another precision
    x[train[:3]] = x[held[:3]]
    drawn = replace(rows, embeddings=x)
    found = evaluate(released, drawn, SOME)  # of one draw: equal rows are two records
    assert "do not add up" in found.report["with_the_training"]
    meta = {name: value for name, value in rows.meta.items() if name != "held_out"}
    shared = replace(drawn, meta=meta)
    with pytest.raises(ValueError, match=r"must not be training rows, got row \d+ and 2 more"):
        evaluate(released, shared, SOME)
    alone = rows.subset(rows.split == 2)
    words = "do not add up, if the model learned from training rows of these sets alone"
    assert words in evaluate(released, alone, SOME).report["with_the_training"]
    other = replace(alone, split=np.zeros(len(alone), np.uint8))
    with pytest.raises(ValueError, match=r"must not be training rows, got row 0 and 99 more"):
        evaluate(released, alone, SOME, training=[other])


def test_nobody_counts_the_training_rows_that_are_let_in(released: Release, rows) -> None:
    """The number would be exact, and no ε covers it: nothing but the sum may depend on it."""
    x = np.array(rows.embeddings)
    x[np.flatnonzero(rows.split == 0)[:3]] = x[np.flatnonzero(rows.split == 2)[:3]]
    reports = [
        evaluate(released, replace(rows, embeddings=each, meta={}), SOME, overlap="add").report
        for each in (rows.embeddings, x)
    ]
    assert reports[0]["with_the_training"].endswith("the promises add up")
    of_sum = reports[0].keys() - summed(released, rows, SOME).report.keys()
    first, second = ({k: v for k, v in each.items() if k not in of_sum} for each in reports)
    assert first == second


def test_a_draw_by_a_seed_is_for_simulations(released: Release, rows: EmbeddingSet) -> None:
    seeded = replace(rows, meta=rows.meta | {"held_out": {"seed": 0}})
    with pytest.raises(ValueError, match="rows must be held out by the operating system's draw"):
        evaluate(released, seeded, SOME)
    report = evaluate(released, seeded, SOME, noise="float").report
    assert "a seed says which rows are held out" in report["unsuitable_because"]


def test_for_users_and_groups_promises_add_up(released: Release, rows: EmbeddingSet) -> None:
    single = summed(released, rows, SOME, noise="float")
    by_user, by_pair = Privacy(1.0, 1e-5, unit="user"), Privacy(1.0, 1e-5, None, group_size=2)
    for privacy, times in ((by_user, 5), (by_pair, 2)):
        found = summed(released, rows, privacy, noise="float")
        assert "promises add up" in found.report["with_the_training"]
        assert found.noise_std == pytest.approx(times * single.noise_std)


def test_users_that_drop_out(released: Release, rows: EmbeddingSet) -> None:
    given: Any = {"partition": split(torch.zeros(100, dtype=torch.int64), 10), "bins": 0}
    given |= {"faults": FaultInjection(dropped=[9]), "min_survivors": 9}
    found = summed(released, rows, SOME, **given)
    assert (found.report["survivors"], found.report["rows"]) == (9, 90)
    assert found.sizes.tolist() == [10] * 9
    assert not found.report["suitable_for_release"]


def test_clusters_widen_intervals(released: Release, rows: EmbeddingSet) -> None:
    found = (evaluate(released, rows, NONE, sampling=by) for by in ("rows", "users"))
    alone, whole = (each.estimates.accuracy for each in found)
    assert whole.high - whole.low > 1.8 * (alone.high - alone.low)  # sqrt(5 rows of every user)


def test_rows_that_no_evaluation_looks_at(released: Release, rows: EmbeddingSet) -> None:
    x, held = np.array(rows.embeddings), np.flatnonzero(rows.split == 2)
    x[held[5], 2] = np.nan
    labels = np.array(rows.labels)
    labels[held[4]] = 7
    assert released.encoding is not None
    of_another = released.encoding.to_json() | {"encoder_hash": "1" * 64}
    turned = {"class_names": ["dog", "cat", "owl"]}
    changes: dict[str, dict[str, Any]] = {
        "got none; `embed hold-out --share 0.2`": {"split": np.zeros(400, np.uint8)},
        "must have the model's 6 columns, got 5": {"embeddings": x[:, :5].copy()},
        f"must be finite, got nan in row {held[5]}": {"embeddings": x},
        r"must lie in \[0, 3\), got 7 and 1 outside": {"labels": labels, "meta": {}},
        r"must be \('cat', .* as the model's, got \('dog', 'cat'": {"meta": turned},
        r"as the model's, got \('dog'": {"meta": turned | {"classes": "inferred"}},
        "must have labels": {"labels": np.full(400, -1), "meta": {}},
        "model and embeddings must be embedded by one encoder": {"meta": of_another},
    }
    for words, change in changes.items():
        with pytest.raises(ValueError, match=words):
            evaluate(released, replace(rows, **change), SOME)


def test_settings_of_an_evaluation_that_are_refused(released: Release, rows) -> None:
    of_99 = split(torch.zeros(99, dtype=torch.int64), 9)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"noise": "none"}, "noise must be one of discrete, float, got 'none'"),
        ({"generator": torch.Generator()}, "generator must be None for noise 'discrete'"),
        ({"confidence": 0.9999}, "confidence must be in .0.5, 0.999., got 0.9999"),
        ({"sampling": "all"}, "sampling must be one of rows, users, got 'all'"),
        ({"overlap": "yes"}, "overlap must be one of refuse, add, got 'yes'"),
        ({"bins": 51}, "bins must be in .0, 50., got 51"),
        ({"min_survivors": 21}, r"min_survivors must be in \[1, 20\]"),
        ({"partition": of_99}, "must cover the 100"),
        ({"prior": "both"}, "carries the prior of its rows inside"),
        ({"prior": (0.2, 0.3, 0.5)}, "carries the prior of its rows inside"),
    ]
    for settings, words in refused:
        with pytest.raises(ValueError, match=words):
            evaluate(released, rows, SOME, **settings)
