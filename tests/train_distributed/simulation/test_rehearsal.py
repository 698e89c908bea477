"""`rehearse` plays what `run` does on public rows; four of five new tasks are in its interval."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.options import Knowledge
from embed.public_scatter import PublicScatter
from train_distributed.commands.options import RunConfig
from train_distributed.commands.rehearsing import Rehearse
from train_distributed.commands.releasing import Run
from train_distributed.one_shot.release import release
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation import rehearsal as room
from train_distributed.simulation.prediction import Predictions, predictive_interval
from train_distributed.simulation.rehearsal import Played, Rehearsal, Sizes
from train_distributed.simulation.tasks import (
    LEFT,
    RawCoordinates,
    dealt,
    held_out_tasks,
    overlap,
    tasks_like,
    tasks_of_known,
)

PROMISE = Privacy(1.0, 1e-5)
SIZES = Sizes(users=10, rows_per_user=16, num_classes=4)
CLASSES, DIM = 14, 12


def rows_of(
    seed: int, number: int = 60, classes: int = CLASSES, shift: float = 0.0
) -> EmbeddingSet:
    """Gaussian classes; equal places for equal classes, whatever the seed."""
    places = 2 * np.random.default_rng(7).standard_normal((CLASSES, DIM))[:classes]
    rng = np.random.default_rng(seed)
    labels = np.arange(number * classes) % classes
    rows = places[labels] + rng.standard_normal((len(labels), DIM)) + shift
    meta = {"class_names": [f"kind {label}" for label in range(classes)]}
    return EmbeddingSet(embeddings=rows.astype(np.float32), labels=labels, meta=meta)


@pytest.fixture(scope="module")
def public() -> EmbeddingSet:
    return rows_of(0)


def test_raw_coordinates_are_those_of_the_transform(public):
    whole = PublicTransform.fit(public)
    ours, theirs = RawCoordinates.fit(public).of(public), whole(public.embeddings)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)


def test_the_scatter_is_that_of_rows_which_a_task_leaves_public(public):
    rehearsal = Rehearsal.of(public, SIZES, PROMISE)
    task = rehearsal.tasks[2]
    found = rehearsal.stage(task).transform
    kept = torch.from_numpy(rehearsal.public.embeddings[task.public])
    labels = torch.from_numpy(public.labels[task.public])
    wanted = PublicScatter.of([kept], labels)
    assert found.between_class is not None
    assert wanted.between is not None
    torch.testing.assert_close(found.row_mean, wanted.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.within_class, wanted.within, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.between_class, wanted.between, rtol=0, atol=1e-9)
    assert not set(task.classes) & set(public.labels[task.public])


def test_settings_are_those_that_run_takes(public):
    rehearsal = Rehearsal.of(public, SIZES, PROMISE)
    stage = rehearsal.stage(rehearsal.tasks[0])
    options = rehearsal.request(stage, 1.0).settings.options
    kept = public.subset(rehearsal.tasks[0].public)
    given = {"method": "discriminant", "privacy": PROMISE, "transform": PublicTransform.fit(kept)}
    wanted = ReleaseRequest(embeddings=SIZES.federation, **given).settings.options
    assert options["class_noise"] == wanted["class_noise"]
    assert options["sums"] == wanted["sums"] == 2
    assert abs(options["components"] - wanted["components"]) <= 1


def test_a_rehearsed_release_is_as_good_as_one_of_the_same_rows():
    """All numbers alike but for the draws of the noise."""
    public, own = rows_of(0, 40), rows_of(1, 200, 4)
    rehearsal = Rehearsal.of(public, SIZES, PROMISE, like=own, tasks=6)
    played = [rehearsal.play(rehearsal.stage(t), 0, 3.0).accuracy for t in rehearsal.tasks]
    split = np.repeat([0, 1], [160, 640]).astype(np.uint8)
    data = replace(own, split=split, users=np.repeat(np.arange(10), [16] * 9 + [656]))
    given = {"transform": PublicTransform.fit(public), "noise": "float"}
    found = []
    for seed in range(6):
        given["generator"] = torch.Generator().manual_seed(seed)
        made = release(data, "discriminant", replace(PROMISE, epsilon=3.0), **given)
        found.append(made.report["test_accuracy"])
    assert np.mean(played) == pytest.approx(np.mean(found), abs=0.08)


def test_the_rehearsed_noise_is_that_of_the_whole_federation(public, monkeypatch):
    """Of 1,000 users with few rows to play them: sums are scaled, the noise is theirs."""
    sizes = replace(SIZES, users=1000)
    rehearsal = Rehearsal.of(public, sizes, PROMISE)
    stage = rehearsal.stage(rehearsal.tasks[0])
    seen, whole = [], room.released

    def recorded(method, total, held, of, promise, draw):
        seen.append((held.sizes.sum().item(), of.sum().item(), len(of)))
        return whole(method, total, held, of, promise, draw)

    monkeypatch.setattr(room, "released", recorded)
    many = rehearsal.play(stage, 0, 0.3).accuracy
    few = Rehearsal.of(public, SIZES, PROMISE).play(stage, 0, 0.3).accuracy
    assert seen[0][1:] == (16_000, 1000)
    assert seen[0][0] <= 180
    assert many > few + 0.1


def test_what_is_public_alone_is_known_where_examples_are(public, tmp_path):
    plain = Rehearsal.of(public, SIZES, PROMISE)
    kinds = {cell.kind for cell in plain.baselines(plain.stage(plain.tasks[0]), 0)}
    assert kinds == {"largest class"}
    rows_of(3, 5, 4).save(tmp_path / "examples")
    knowledge = Knowledge(examples=tmp_path / "examples")
    shown = Rehearsal.of(public, SIZES, PROMISE, knowledge=knowledge)
    assert shown.examples == 5
    stage = shown.stage(shown.tasks[0])
    assert stage.transform.known is not None
    assert len(stage.task.private) == len(shown.tasks[0].private) - 4 * 5
    alone = [cell for cell in shown.baselines(stage, 0) if cell.kind == "public alone"]
    assert alone[0].balanced > 0.6


def test_classes_that_public_rows_have_are_played_as_such(public):
    names = tuple(f"Kind {label}" for label in (3, 1, 8, 0))
    rehearsal = Rehearsal.of(public, SIZES, PROMISE, knowledge=Knowledge(names=names))
    assert rehearsal.known_classes
    task = rehearsal.tasks[0]
    assert task.classes.tolist() == [3, 1, 8, 0]
    assert set(task.classes) <= set(public.labels[task.public])
    known = rehearsal.stage(task).transform.known
    assert known is not None
    assert known.class_names == ("kind 3", "kind 1", "kind 8", "kind 0")
    same = Rehearsal.of(public, replace(SIZES, num_classes=CLASSES), PROMISE, like=public)
    assert same.known_classes
    assert same.stage(same.tasks[0]).transform.known is not None


def test_the_first_doubling_that_gains_five_points_is_named(public, monkeypatch):
    rehearsal = Rehearsal.of(public, SIZES, PROMISE)

    def played(self, stage, seed, epsilon, users=None):
        gained = 0.02 * np.log2((users or 10) / 10) + 0.04 * np.log2(epsilon)
        return Played(stage.task.number, seed, "private", epsilon, 10, 0.0, 0.5 + gained)

    monkeypatch.setattr(Rehearsal, "play", played)
    assert rehearsal.needed(1.0, more="users") == 80
    assert rehearsal.needed(1.0, more="epsilon") == 4
    monkeypatch.setattr(room, "DOUBLINGS", (2, 4))
    assert rehearsal.needed(1.0, more="users") is None


@pytest.mark.parametrize("kind", ["record", "user", "examples"])
def test_the_configuration_runs(public, tmp_path, kind):
    unit = "user" if kind == "user" else "record"
    out = tmp_path / "out"
    given: dict[str, Any] = {"public": tmp_path / "public"}
    public.save(tmp_path / "public")
    Rehearse(tmp_path / "public", 10, 16, 4, (1.0, 3.0), unit=unit, out=out).run()
    report = json.loads((out / "report.json").read_text())
    chosen = RunConfig.read(out / "configuration.json")
    assert chosen.privacy == Privacy(1.0, 1e-5, unit=unit)
    assert set(chosen.options) == (set() if unit == "record" else {"user_clip"})
    assert (out / "accuracy.png").stat().st_size > 1000
    assert report["private_data_read"] is False
    found = {each["kind"] for each in report["predictions"]}
    assert found == {"private", "no privacy", "largest class"}
    own = replace(rows_of(5, 40, 4, shift=0.2), users=np.arange(160) % 10)
    if kind == "examples":
        rows_of(9, 6, 4).save(tmp_path / "shown")
        given["examples"] = tmp_path / "shown"
    else:
        own, given["num_classes"] = replace(own, meta={}), 4
    own.save(tmp_path / "own")
    given |= vars(chosen.privacy) | {"ledger": Path("none"), "out": tmp_path / "model"}
    Run(tmp_path / "own", config=out / "configuration.json", **given).run()
    made = json.loads((tmp_path / "model" / "report.json").read_text())
    if kind == "examples":
        assert made["known_before"] == ["24 public examples of 4 classes"]
    else:
        assert made["rounds"] == 2


def test_clips_are_median_lengths_of_users_of_public_rows(public):
    rehearsal = Rehearsal.of(public, SIZES, replace(PROMISE, unit="user"))
    first, own = rehearsal.proposed_clips(1.0)
    bound = np.sqrt(1.25) * SIZES.rows_per_user
    assert 0 < first < bound
    assert np.sqrt(SIZES.rows_per_user) / 2 < own < bound


TRIES = 1500
LABELS = np.arange(120) % 12


@pytest.mark.parametrize(("known", "tasks"), [(200, 12), (30, 12), (16, 12)])
def test_four_of_five_new_tasks_lie_in_their_interval(known, tasks):
    """A task's result is the mean of its classes', with noise by seed."""
    rng, classes, held = np.random.default_rng(0), 8, 0
    posed = tasks_like(np.arange(known), classes, tasks, public=1)
    shared = overlap(posed)
    for _ in range(TRIES):
        ease = rng.normal(0.5, 0.1, known)
        means = np.array([ease[task.classes].mean() for task in posed])
        values = means[:, None] + rng.normal(0, 0.02, (tasks, 2))
        found = predictive_interval(values, shared)
        held += found.low <= rng.normal(0.5, 0.1, classes).mean() <= found.high
    assert held / TRIES == pytest.approx(0.8, abs=0.035)


def test_tasks_of_the_asked_classes_differ_by_their_rows_alone():
    rng, held = np.random.default_rng(1), 0
    for _ in range(TRIES):
        values = rng.normal(0.5, 0.03, (10, 2))
        found = predictive_interval(values, np.ones((10, 10)))
        held += found.low <= rng.normal(0.5, 0.03, (10, 2)).mean() <= found.high
    assert held / TRIES == pytest.approx(0.8, abs=0.03)


def test_public_rows_are_a_sample_of_what_they_stand_for():
    """Tasks that try parts of the same 900 rows differ less than 900 others would."""
    rng, held, rows, right = np.random.default_rng(2), 0, 900, 0.6
    for _ in range(TRIES):
        hits = rng.random(rows) < right
        values = [[rng.permutation(hits)[:300].mean() for _ in range(2)] for _ in range(12)]
        played = [
            Played(task, seed, "private", 1.0, 9, value, value)
            for task, each in enumerate(values)
            for seed, value in enumerate(each)
        ]
        found = Predictions(played, np.ones((12, 12)), rows).of("private", 1.0)
        held += found.low <= right <= found.high
    assert held / TRIES == pytest.approx(0.8, abs=0.05)


def test_an_interval_is_of_shares():
    found = predictive_interval([[0.0], [1.0]], np.eye(2))
    assert (found.low, found.high) == (0, 1)
    assert predictive_interval([[0.5, 0.7], [0.6, 0.6]], np.eye(2)).single == pytest.approx(0.1)


def verdict(*pairs: tuple[Any, float | None, float]) -> str:
    played = [
        Played(task, seed, kind, epsilon, 20, value + 0.01 * task, value + 0.01 * task)
        for kind, epsilon, value in pairs
        for task in range(4)
        for seed in range(2)
    ]
    return Predictions(played, np.eye(4)).verdict(1.0)


def test_words_follow_from_what_private_rows_add():
    alone, one = ("public alone", None, 0.6), ("largest class", None, 0.1)
    worth = verdict(("private", 1.0, 0.7), alone, one)
    assert worth.startswith("private rows are worth it: +10.0 points")
    assert worth.endswith("beside what is public alone reaches, 61.5 %")
    less = verdict(("private", 1.0, 0.61), alone, one)
    assert less.startswith("private rows are not worth it: +1.0 points")
    unknown = verdict(("private", 1.0, 0.7), one)
    assert unknown.endswith("beside always answering with one class")
    ours = [Played(k, 0, "private", 1.0, 20, 0.0, v) for k, v in enumerate((0.6, 0.7, 0.5))]
    theirs = [Played(k, 0, "largest class", None, 20, 0.0, 0.5) for k in range(3)]
    varies = Predictions([*ours, *theirs], np.eye(3)).verdict(1.0)
    assert "are probably worth it: +10.0" in varies


def test_a_held_out_task_leaves_none_of_its_classes_public():
    tasks = held_out_tasks(LABELS, 4, 5)
    for task in tasks:
        private, public = LABELS[task.private], LABELS[task.public]
        assert set(private) == set(task.classes)
        assert not set(private) & set(public)
        assert len(task.private) + len(task.public) == len(LABELS)
        assert np.array_equal(task.classes[task.labels(LABELS)], private)
    assert len({task.classes.tobytes() for task in tasks}) > 1


def test_no_row_trains_and_tests():
    task = held_out_tasks(LABELS, 4, 1)[0]
    for wanted, held in ((10, 10), (1000, 30)):
        train, test = task.split(0, wanted)
        assert len(train) == held
        assert not set(train) & set(test)
        assert set(train) | set(test) == set(range(40))
    assert not np.array_equal(task.split(0, 10)[0], task.split(1, 10)[0])


def test_all_classes_are_dealt_equally_often():
    hands = dealt(np.arange(10), 4, 5)
    assert (np.bincount(np.concatenate(hands), minlength=10) == 2).all()
    assert all(len(set(hand)) == 4 for hand in hands)


def test_overlap_is_the_share_of_classes_in_common():
    tasks = tasks_like(LABELS, 6, 3, public=7)
    third = np.isin(tasks[2].classes, tasks[0].classes).mean()
    expected = [[1, 0, third], [0, 1, 1 - third], [third, 1 - third, 1]]
    np.testing.assert_allclose(overlap(tasks), expected)
    assert (overlap(tasks_like(LABELS, 12, 3, public=7)) == 1).all()
    assert tasks[0].public.tolist() == list(range(7))


def test_known_classes_keep_half_of_their_rows_public():
    for task in tasks_of_known(LABELS, [1, 2, 3], 3):
        assert np.bincount(LABELS[task.private], minlength=4)[1:].sum() == 15
        assert not set(task.private) & set(task.public)
        assert set(LABELS[task.public]) == set(range(12))


def test_what_cannot_be_rehearsed_is_refused(public, tmp_path):
    public.save(tmp_path / "public")
    replace(public, embeddings=public.embeddings[:, :5]).save(tmp_path / "narrow")
    given = {"like": tmp_path / "narrow", "out": tmp_path / "out"}
    for call, message in {
        lambda: predictive_interval([[0.5]], np.eye(1)): "tasks must be >= 2 .*, got 1",
        lambda: held_out_tasks(LABELS, 11, 1): rf"num_classes \+ {LEFT} = 13 classes.*got 12",
        lambda: tasks_like(LABELS, 13, 1, public=1): "must hold at least num_classes = 13 classes",
        Rehearse(tmp_path / "public", 10, 16, 4, **given).run: "like must have 12 columns .* got 5",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("like", [False, True])
def test_findings_are_rehearsed_as_findings(like: bool, tmp_path: Path, capsys, monkeypatch):
    """Of public findings, or of those of a set that is like the private one."""
    monkeypatch.setattr(room, "DOUBLINGS", (2,))
    rng, plain = np.random.default_rng(0), rows_of(0, 60)
    findings = (rng.random((len(plain), 5)) < 0.3).astype(np.int8)
    rows = plain.embeddings + 3 * findings @ rng.standard_normal((5, DIM)).astype(np.float32)
    none = np.full(len(plain), -1)
    several = EmbeddingSet(embeddings=rows, labels=none, findings=findings)
    several.save(tmp_path / "several")
    plain.save(tmp_path / "plain")
    out, own = tmp_path / "out", tmp_path / "several"
    public, liked = (tmp_path / "plain", own) if like else (own, None)
    Rehearse(public, 10, 30, 4, epsilon=(5.0,), like=liked, out=out).run()
    assert "all findings right" in capsys.readouterr().out
    assert RunConfig.read(out / "configuration.json").method == "findings"
    report = json.loads((out / "report.json").read_text())
    assert report["measures"] == ["all findings right", "area under ROC"]
    private = next(each for each in report["predictions"] if each["kind"] == "private")
    assert 0.6 < private["balanced_accuracy"]["mean"] < 1
