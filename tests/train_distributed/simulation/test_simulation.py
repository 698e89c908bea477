"""Trainings that settings share; `rehearse` plays what `run` does, and its intervals hold."""

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.options import Knowledge
from embed.public_scatter import PublicScatter
from tests.embedding_sets import clusters
from tests.train_distributed.one_shot.builders import simulated
from train_distributed.commands.options import RunConfig
from train_distributed.commands.rehearsing import Rehearse
from train_distributed.commands.releasing import Run
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import split
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation import rehearsal as room
from train_distributed.simulation.plan import Grid, MethodConfig, Scenario, held_out
from train_distributed.simulation.prediction import Predictions, predictive_interval
from train_distributed.simulation.rehearsal import Played, Rehearsal, Sizes
from train_distributed.simulation.runner import accuracies, run_trials
from train_distributed.simulation.shared_training import RowsInMemory, released, totals
from train_distributed.simulation.tasks import (
    LEFT,
    RawCoordinates,
    dealt,
    held_out_tasks,
    overlap,
    tasks_like,
    tasks_of_known,
)

TRANSFORM, SGD = PublicTransform.identity(3), {"solver": "sgd", "epochs": 3}
PROMISE, SIZES = Privacy(1.0, 1e-5), Sizes(users=10, rows_per_user=16, num_classes=4)
CLASSES, DIM, TRIES = 14, 12, 1500
LABELS = np.arange(120) % 12


@pytest.fixture
def held() -> RowsInMemory:
    generator, sizes = torch.Generator().manual_seed(0), torch.tensor([5, 20, 10, 25])
    x = TRANSFORM(torch.randn(60, 3, generator=generator))
    y = torch.randint(3, (60,), generator=generator)
    return RowsInMemory(x, y, split(y, 4, "iid", sizes=sizes, generator=generator))


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("discriminant", [{}, {"alpha": 2.0}]),
        ("discriminant", [{"user_clip": 1.0}, {"user_clip": 3.0, "prior": "equal"}]),
        ("discriminant", [{"user_clip": 4.0}, {"moments": False}]),
        ("softmax", [{}, {"radius": 0.2}, {"radius": 0.5, "bound": "paper"}]),
        ("softmax", [{"user_clip": 3.0}, {"user_clip": 2.0, "radius": 0.5}]),
        ("softmax", [SGD, {**SGD, "user_clip": 1.0}]),
        ("svm", [{"l2_reg": 0.3, "user_clip": 3.0}, {"l2_reg": 0.3, "radius": 0.4}]),
    ],
)
def test_shared_training_gives_every_users_own_sum(held, name, variants):
    own = {} if METHODS[name].sums_rows else {"l2_reg": 1.0}
    methods = [build_method(name, TRANSFORM, 3, own | options).statistic for options in variants]
    for total, method in zip(totals(held, methods), methods, strict=True):
        alone = [
            method.submit(chunk.select(chunk.users == user)).sum(0)
            for chunk in held.chunks()
            for user in chunk.users
        ]
        torch.testing.assert_close(total, torch.stack(alone).sum(0), rtol=1e-5, atol=1e-6)


def test_settings_share_a_training_only_if_it_does_not_see_their_options():
    def training(**options):
        return MethodConfig("a", "softmax", "t", options).training

    assert training(radius=1.0, bound="paper") == training() == training(radius=2.0)
    assert training(l2_reg=0.1) != training(l2_reg=0.2)
    assert training(solver="sgd", radius=1.0) != training(solver="sgd", radius=2.0)
    assert training(user_clip=1.0) == training(user_clip=2.0) != training()


def test_noise_has_the_standard_deviation_of_the_guarantee(held):
    method = build_method("discriminant", TRANSFORM, 3, {"moments": False})
    promise = Privacy(0.5, 1e-5, 0.5)
    plan = Plan.of(method, held.sizes, promise, discrete=False)
    std = plan.main.mechanism.local_std * math.sqrt(4)
    given = (torch.zeros(12).double(), held, held.sizes, promise)
    course = released(method, *given, lambda _, dimension: torch.ones(dimension))
    assert course.noised.rows == 60
    assert course.noised.noise_std == pytest.approx(std)
    torch.testing.assert_close(course.noised.total, torch.full((12,), std, dtype=torch.float64))


def blobs(rows: int = 120) -> EmbeddingSet:
    return clusters(rows, 3, 3, scale=1, noise=0.5, seed=1, test=rows // 4)


def trials(rows: EmbeddingSet, transform: PublicTransform, **grid) -> dict:
    return dict(run_trials(rows, {"default": transform}, Grid(**grid, num_classes=3)))


def test_rows_that_stand_for_more_users_are_as_good_as_less_noise():
    scenarios = [Scenario(users=6), Scenario(users=6, stands_for=(600, 15))]
    promises = [Privacy(0.02, 1e-5), Privacy(math.inf, 1e-5)]
    grid = {"settings": [MethodConfig("a", "discriminant")], "scenarios": scenarios}
    found, means = trials(blobs(), TRANSFORM, promises=promises, seeds=range(8), **grid), {}
    for cell in itertools.chain(*found.values()):
        means.setdefault((cell.scheme, cell.epsilon), []).append(cell.accuracy)
    noisy, more = (np.mean(means[scenario.name, 0.02]) for scenario in scenarios)
    free, same = (np.mean(means[scenario.name, None]) for scenario in scenarios)
    assert free == same
    assert noisy + 0.1 < more <= free


def test_clipped_sums_know_who_holds_which_rows():
    """A user of one class is clipped more than one of three: nothing of either is the other's."""
    schemes = [Scenario(users=60, scheme=scheme) for scheme in ("iid", "one-class")]
    data = blobs(1200)
    settings = [
        MethodConfig("a", "discriminant", options={"moments": False}),
        MethodConfig("b", "discriminant", options={"user_clip": 3.0}),
    ]
    promise = Privacy(8.0, 1e-5, unit="user")  # under noise the length of a sum shows
    grid = {"settings": settings, "promises": [promise], "seeds": [0]}
    seen = trials(data, TRANSFORM, scenarios=schemes, **grid)
    assert trials(data, TRANSFORM, scenarios=schemes[::-1], **grid) == seen
    assert trials(data, TRANSFORM, scenarios=schemes[1:], **grid).items() <= seen.items()
    assert len(seen) == 4
    clipped = [cells[0].accuracy for key, cells in seen.items() if "clip" in key]
    assert clipped[0] != clipped[1]


def test_equal_seeds_give_equal_rows_to_all_schemes():
    labels, drawn = torch.arange(100) % 4, []
    for scheme in ("iid", "one-class"):
        placed = Scenario(users=5, scheme=scheme, rows_per_user=6)
        drawn.append(placed.place(labels, None, torch.Generator().manual_seed(3))[0])
    assert torch.equal(*drawn)
    assert len(drawn[0].unique()) == 30


def test_folds_of_a_repetition_cover_all_rows_once_and_are_stratified():
    labels, split_of = np.repeat([0, 1, 2], [30, 12, 18]), np.zeros(60, np.uint8)
    tested = [held_out(labels, split_of, 6, seed)[1] for seed in range(12)]
    for repetition in (tested[:6], tested[6:]):
        np.testing.assert_array_equal(np.sort(np.concatenate(repetition)), np.arange(60))
    for rows in tested:
        np.testing.assert_array_equal(np.bincount(labels[rows]), [5, 2, 3])
    assert not np.array_equal(tested[0], tested[6])
    with pytest.raises(ValueError, match="folds must be >= 2, got 1"):
        held_out(labels, split_of, 1, 0)


def test_balanced_accuracy_is_the_mean_over_classes_that_occur() -> None:
    """Always the first of three classes, of which one has no row: 3 of 4 rows, 1 of 2 classes."""
    always = torch.tensor([[1.0, 0, 0]], dtype=torch.float64)
    both = accuracies(torch.ones(4, 1), torch.tensor([0, 0, 0, 2]), iter([always, always.flip(1)]))
    assert both == [(0.75, 0.5), (0.25, 0.5)]


@pytest.mark.parametrize("sums", [1, 2])
def test_accuracies_under_a_prior_are_those_of_settings_for_it(sums: int) -> None:
    """Two classes of three are rare; the same sums and noise, whichever prior is asked for."""
    even = blobs(600)
    rows = even.subset((even.labels == 0) | (np.arange(600) < 150))
    common, public = {"sums": sums}, PublicTransform.fit(even)
    settings = [
        MethodConfig("equal", "discriminant", options=common),
        MethodConfig("private", "discriminant", options=common | {"prior": "private"}),
        MethodConfig("head", "softmax", options={"l2_reg": 1.0}),
    ]
    grid = {"scenarios": [Scenario(users=6)], "promises": [Privacy(3.0, 1e-5)], "seeds": [0]}
    cells = trials(rows, public, settings=settings, **grid).values()
    found = {cell.label: cell for cell in itertools.chain(*cells)}
    assert found.pop("head").by_prior is None
    for cell in found.values():
        assert list(cell.by_prior or ()) == ["equal", "private"]
        for prior, other in found.items():
            under = {"accuracy": other.accuracy, "balanced_accuracy": other.balanced}
            assert (cell.by_prior or {})[prior] == under
    assert found["equal"].accuracy < found["private"].accuracy


def rows_of(seed: int, number: int = 60, classes: int = CLASSES) -> EmbeddingSet:
    """Gaussian classes; equal places for equal classes, whatever the seed."""
    places = 2 * np.random.default_rng(7).standard_normal((CLASSES, DIM))
    rng, labels = np.random.default_rng(seed), np.arange(number * classes) % classes
    rows = places[labels] + rng.standard_normal((len(labels), DIM))
    meta = {"class_names": [f"kind {label}" for label in range(classes)]}
    return EmbeddingSet(embeddings=rows.astype(np.float32), labels=labels, meta=meta)


@pytest.fixture(scope="module")
def public() -> EmbeddingSet:
    return rows_of(0)


@pytest.fixture(scope="module")
def rehearsal(public) -> Rehearsal:
    return Rehearsal.of(public, SIZES, PROMISE)


def test_raw_coordinates_are_those_of_the_transform(public):
    whole = PublicTransform.fit(public)
    ours, theirs = RawCoordinates.fit(public).of(public), whole(public.embeddings)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-4)


def test_the_scatter_is_that_of_rows_which_a_task_leaves_public(public, rehearsal):
    task = rehearsal.tasks[2]
    found: Any = rehearsal.stage(task).transform
    kept = torch.from_numpy(rehearsal.public.embeddings[task.public])
    wanted: Any = PublicScatter.of([kept], torch.from_numpy(public.labels[task.public]))
    torch.testing.assert_close(found.row_mean, wanted.mean, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.within_class, wanted.within, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.between_class, wanted.between, rtol=0, atol=1e-9)
    assert not set(task.classes) & set(public.labels[task.public])


def test_settings_are_those_that_run_takes(public, rehearsal):
    task = rehearsal.tasks[0]
    options = rehearsal.request(rehearsal.stage(task), 1.0).settings.options
    transform = PublicTransform.fit(public.subset(task.public))
    given = {"method": "discriminant", "privacy": PROMISE, "transform": transform}
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
    transform, found = PublicTransform.fit(public), []
    for seed in range(6):
        made = simulated(data, "discriminant", 3.0, seed, transform=transform)
        found.append(made.report["test_accuracy"])
    assert np.mean(played) == pytest.approx(np.mean(found), abs=0.08)


def test_the_rehearsed_noise_is_that_of_the_whole_federation(public, rehearsal, monkeypatch):
    """Of 1,000 users with few rows to play them: sums are scaled, the noise is theirs."""
    large = Rehearsal.of(public, replace(SIZES, users=1000), PROMISE)
    stage, seen, whole = large.stage(large.tasks[0]), [], room.released

    def recorded(method, total, held, of, promise, draw):
        seen.append((held.sizes.sum().item(), of.sum().item(), len(of)))
        return whole(method, total, held, of, promise, draw)

    monkeypatch.setattr(room, "released", recorded)
    many, few = (each.play(stage, 0, 0.3).accuracy for each in (large, rehearsal))
    assert seen[0][1:] == (16_000, 1000)
    assert seen[0][0] <= 180
    assert many > few + 0.1


def test_what_is_public_alone_is_known_where_examples_are(public, rehearsal, tmp_path):
    kinds = {cell.kind for cell in rehearsal.baselines(rehearsal.stage(rehearsal.tasks[0]), 0)}
    assert kinds == {"largest class"}
    rows_of(3, 5, 4).save(tmp_path / "examples")
    knowledge = Knowledge(examples=tmp_path / "examples")
    shown = Rehearsal.of(public, SIZES, PROMISE, knowledge=knowledge)
    assert shown.examples == 5
    stage = shown.stage(shown.tasks[0])
    assert stage.transform.known is not None
    assert len(stage.task.private) == len(shown.tasks[0].private) - 4 * 5
    (alone,) = (cell for cell in shown.baselines(stage, 0) if cell.kind == "public alone")
    assert alone.balanced > 0.6


def test_classes_that_public_rows_have_are_played_as_such(public):
    names = tuple(f"Kind {label}" for label in (3, 1, 8, 0))
    named = Rehearsal.of(public, SIZES, PROMISE, knowledge=Knowledge(names=names))
    task = named.tasks[0]
    assert task.classes.tolist() == [3, 1, 8, 0]
    assert set(task.classes) <= set(public.labels[task.public])
    known: Any = named.stage(task).transform.known
    assert known.class_names == ("kind 3", "kind 1", "kind 8", "kind 0")
    same = Rehearsal.of(public, replace(SIZES, num_classes=CLASSES), PROMISE, like=public)
    assert same.known_classes
    assert named.known_classes
    assert same.stage(same.tasks[0]).transform.known is not None


def test_the_first_doubling_that_gains_five_points_is_named(rehearsal, monkeypatch):
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
    out, own = tmp_path / "out", replace(rows_of(5, 40, 4), users=np.arange(160) % 10)
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
    if kind == "examples":
        rows_of(9, 6, 4).save(tmp_path / "shown")
        given["examples"] = tmp_path / "shown"
    else:
        own, given["num_classes"] = replace(own, meta={}), 4
    own.save(tmp_path / "own")
    given |= vars(chosen.privacy) | {"ledger": Path("none"), "out": tmp_path / "model"}
    Run(tmp_path / "own", config=out / "configuration.json", **given).run()
    made = json.loads((tmp_path / "model" / "report.json").read_text())
    shown = ["24 public examples of 4 classes"] if kind == "examples" else None
    assert made.get("known_before") == shown
    assert shown or made["rounds"] == 2


def test_clips_are_median_lengths_of_users_of_public_rows(public):
    rehearsal = Rehearsal.of(public, SIZES, replace(PROMISE, unit="user"))
    first, own = rehearsal.proposed_clips(1.0)
    bound = np.sqrt(1.25) * SIZES.rows_per_user
    assert 0 < first < bound
    assert np.sqrt(SIZES.rows_per_user) / 2 < own < bound


@pytest.mark.parametrize("known", [200, 30, 16])
def test_four_of_five_new_tasks_lie_in_their_interval(known):
    """A task's result is the mean of its classes', with noise by seed."""
    rng, classes, tasks, held = np.random.default_rng(0), 8, 12, 0
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
        hits, played = rng.random(rows) < right, []
        for task, seed in itertools.product(range(12), range(2)):
            value = rng.permutation(hits)[:300].mean()
            played.append(Played(task, seed, "private", 1.0, 9, value, value))
        found = Predictions(played, np.ones((12, 12)), rows).of("private", 1.0)
        held += found.low <= right <= found.high
    assert held / TRIES == pytest.approx(0.8, abs=0.05)


def test_an_interval_is_of_shares():
    found = predictive_interval([[0.0], [1.0]], np.eye(2))
    assert (found.low, found.high) == (0, 1)
    assert predictive_interval([[0.5, 0.7], [0.6, 0.6]], np.eye(2)).single == pytest.approx(0.1)


def test_words_follow_from_what_private_rows_add():
    def verdict(kind: Any, *private: float) -> str:
        played = [Played(k, 0, "private", 1.0, 20, 0.0, value) for k, value in enumerate(private)]
        played += [Played(k, 0, kind, None, 20, 0.0, 0.5) for k in range(len(private))]
        return Predictions(played, np.eye(len(private))).verdict(1.0)

    worth, less = verdict("public alone", 0.6, 0.6), verdict("public alone", 0.51, 0.51)
    assert worth.startswith("private rows are worth it: +10.0 points")
    assert worth.endswith("beside what is public alone reaches, 50.0 %")
    assert less.startswith("private rows are not worth it: +1.0 points")
    varies = verdict("largest class", 0.6, 0.7, 0.5)
    assert "are probably worth it: +10.0" in varies
    assert varies.endswith("beside always answering with one class")


def test_no_row_trains_and_tests_and_no_class_of_a_task_is_public():
    tasks = held_out_tasks(LABELS, 4, 5)
    for task in tasks:
        private = LABELS[task.private]
        assert set(private) == set(task.classes)
        assert not set(private) & set(LABELS[task.public])
        assert len(task.private) + len(task.public) == len(LABELS)
        assert np.array_equal(task.classes[task.labels(LABELS)], private)
    assert len({task.classes.tobytes() for task in tasks}) > 1
    for wanted, held in ((10, 10), (1000, 30)):
        train, test = tasks[0].split(0, wanted)
        assert len(train) == held
        assert not set(train) & set(test)
        assert set(train) | set(test) == set(range(40))
    assert not np.array_equal(tasks[0].split(0, 10)[0], tasks[0].split(1, 10)[0])


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


def test_what_cannot_be_placed_or_rehearsed_is_refused():
    few, writers = Scenario(users=3, rows_per_user=4), Scenario(users=None, scheme="by-writer")
    rest = torch.arange(10) % 2, None, torch.Generator()
    for call, message in {
        lambda: few.place(*rest): r"users \* rows_per_user must be in \[1, 10\], got 12",
        lambda: writers.place(*rest): "embeddings must name their users",
        lambda: predictive_interval([[0.5]], np.eye(1)): "tasks must be >= 2 .*, got 1",
        lambda: held_out_tasks(LABELS, 11, 1): rf"num_classes \+ {LEFT} = 13 classes.*got 12",
        lambda: tasks_like(LABELS, 13, 1, public=1): "must hold at least num_classes = 13 classes",
    }.items():
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.parametrize("like", [False, True])
def test_findings_are_rehearsed_as_findings(like: bool, tmp_path: Path, capsys, monkeypatch):
    """Of public findings, or of those of a set that is like the private one."""
    monkeypatch.setattr(room, "DOUBLINGS", (2,))
    rng, plain, out = np.random.default_rng(0), rows_of(0), tmp_path / "out"
    findings = (rng.random((len(plain), 5)) < 0.3).astype(np.int8)
    rows = plain.embeddings + 3 * findings @ rng.standard_normal((5, DIM)).astype(np.float32)
    none, own = np.full(len(plain), -1), tmp_path / "several"
    EmbeddingSet(embeddings=rows, labels=none, findings=findings).save(own)
    plain.save(tmp_path / "plain")
    public, liked = (tmp_path / "plain", own) if like else (own, None)
    Rehearse(public, 10, 30, 4, epsilon=(5.0,), like=liked, out=out).run()
    assert "all findings right" in capsys.readouterr().out
    assert RunConfig.read(out / "configuration.json").method == "findings"
    report = json.loads((out / "report.json").read_text())
    assert report["measures"] == ["all findings right", "area under ROC"]
    private = next(each for each in report["predictions"] if each["kind"] == "private")
    assert 0.6 < private["balanced_accuracy"]["mean"] < 1
