"""Tasks of public classes: whose rows are whose."""

import numpy as np
import pytest

from train_distributed.simulation.tasks import (
    LEFT,
    dealt,
    held_out_tasks,
    overlap,
    tasks_like,
    tasks_of_known,
)

LABELS = np.arange(120) % 12


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
