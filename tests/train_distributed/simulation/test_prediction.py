"""Tasks are what they say, and four of five new ones lie in their interval."""

import numpy as np
import pytest

from train_distributed.simulation.prediction import Predictions, predictive_interval
from train_distributed.simulation.rehearsal import Kind, Played
from train_distributed.simulation.tasks import (
    LEFT,
    dealt,
    held_out_tasks,
    overlap,
    tasks_like,
    tasks_of_known,
)

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


def test_an_interval_is_of_shares_and_needs_two_tasks():
    found = predictive_interval([[0.0], [1.0]], np.eye(2))
    assert (found.low, found.high) == (0, 1)
    assert predictive_interval([[0.5, 0.7], [0.6, 0.6]], np.eye(2)).single == pytest.approx(0.1)
    with pytest.raises(ValueError, match="tasks must be >= 2 for an interval, got 1"):
        predictive_interval([[0.5]], np.eye(1))


def cells(*pairs: tuple[Kind, float | None, float]) -> list[Played]:
    return [
        Played(task, seed, kind, epsilon, 20, value + 0.01 * task, value + 0.01 * task)
        for kind, epsilon, value in pairs
        for task in range(4)
        for seed in range(2)
    ]


ALONE: tuple[Kind, float | None, float] = ("public alone", None, 0.6)
LARGEST: tuple[Kind, float | None, float] = ("largest class", None, 0.1)


def test_words_follow_from_what_private_rows_add():
    worth = Predictions(cells(("private", 1.0, 0.7), ALONE, LARGEST), np.eye(4))
    assert worth.verdict(1.0).startswith("private rows are worth it: +10.0 points")
    assert "what is public alone reaches, 61.5 %" in worth.verdict(1.0)
    less = Predictions(cells(("private", 1.0, 0.61), ALONE, LARGEST), np.eye(4))
    assert less.verdict(1.0).startswith("private rows are not worth it: +1.0 points")
    unknown = Predictions(cells(("private", 1.0, 0.7), LARGEST), np.eye(4))
    assert unknown.beside == "largest class"
    assert unknown.verdict(1.0).endswith("beside always answering with one class")


def test_a_gain_that_varies_is_no_certain_one():
    ours = [Played(k, 0, "private", 1.0, 20, 0.0, v) for k, v in enumerate((0.6, 0.7, 0.5))]
    theirs = [Played(k, 0, "largest class", None, 20, 0.0, 0.5) for k in range(3)]
    found = Predictions([*ours, *theirs], np.eye(3))
    assert "are probably worth it: +10.0" in found.verdict(1.0)


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


def test_too_few_classes_are_refused():
    with pytest.raises(ValueError, match=rf"at least num_classes \+ {LEFT} = 13 classes.*got 12"):
        held_out_tasks(LABELS, 11, 1)
    with pytest.raises(ValueError, match=r"like must hold at least num_classes = 13 classes"):
        tasks_like(LABELS, 13, 1, public=1)
