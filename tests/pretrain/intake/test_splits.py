"""Users are whole: in train or in test, unless somebody asks for both."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pretrain.datasets import (
    ImageSet,
    concatenate,
    hold_out_users,
    refuse_users_in_both,
    users_in_both,
)
from pretrain.intake.archive import open_npz
from pretrain.sources import open_images


def a_set(users: list[int] | None, split: list[int] | None = None, **changes) -> ImageSet:
    count = 60 if users is None else len(users)
    return ImageSet(
        name="set",
        labels=np.zeros(count, np.int64),
        split=np.array(split or [0] * count, np.uint8),
        class_names=("a", "b"),
        users=None if users is None else np.array(users),
        read=lambda rows: np.zeros((len(rows), 2, 2, 3), np.uint8),
        **changes,
    )


def test_whole_users_are_held_out() -> None:
    users = [k // 3 for k in range(60)]
    held = hold_out_users(a_set(users), 0.25)
    assert not users_in_both(held)
    assert held.users is not None
    tested = set(held.users[held.split == 1].tolist())
    assert len(tested) == 5
    assert (held.split == 1).sum() == 15
    order = np.random.default_rng(0).permutation(60)
    again = hold_out_users(a_set([users[k] for k in order]), 0.25)
    assert (again.split == held.split[order]).all()  # whatever order the rows are in


def test_it_is_names_that_decide_not_their_numbers() -> None:
    names = tuple(f"clinic {k}" for k in range(20))
    users = [k % 20 for k in range(60)]
    first = hold_out_users(a_set(users, user_names=names), 0.3)
    other = hold_out_users(a_set([19 - k for k in users], user_names=names[::-1]), 0.3)
    assert (first.split == other.split).all()
    assert (first.split == 1).sum() == 18
    numbered = hold_out_users(a_set(users), 0.3)
    assert (numbered.split != first.split).any()


def test_a_share_of_nobody_or_of_all_is_refused() -> None:
    for share, of in ((0.001, "none"), (0.999, "all")):
        rule = f"test_share must take some of 2 users and leave some, got {share}, {of} of them"
        with pytest.raises(ValueError, match=rule):
            hold_out_users(a_set([0, 0, 1]), share)


def test_rows_held_out_for_evaluation_stay_so() -> None:
    held = hold_out_users(a_set([0, 1, 2, 3], [0, 0, 2, 2]), 0.5)
    assert held.split.tolist()[2:] == [2, 2]
    assert sorted(held.split.tolist()[:2]) == [0, 1]


@pytest.mark.parametrize(
    ("images", "share", "rule"),
    [
        (a_set([0, 1], [0, 1]), 0.5, "test_share must be left out for set, which has test images"),
        (
            a_set(None),
            0.5,
            r"test_share must have users to divide \(or .*--test-share image:0\.5\)",
        ),
        (a_set([7, 7]), 0.5, "test_share must have two or more users to divide, got 1"),
    ],
)
def test_shares_that_cannot_be(images: ImageSet, share: float, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        hold_out_users(images, share)


def test_users_in_both_splits_are_named() -> None:
    refuse_users_in_both(a_set([0, 1, 2], [0, 0, 1]))
    refuse_users_in_both(a_set([0, 0, 0], [0, 2, 2]))  # evaluation is of a user's own rows
    refuse_users_in_both(a_set(None, [0] * 30 + [1] * 30))
    rule = r"users of set must not be in train and test both .* got 4 who are: 0, 1, 2, \.\.\."
    with pytest.raises(ValueError, match=rule):
        refuse_users_in_both(a_set([0, 1, 2, 3] * 2, [0] * 4 + [1] * 4))
    with pytest.raises(ValueError, match="got 1 who are: Zoe"):
        refuse_users_in_both(a_set([1, 1], [0, 1], user_names=("Ann", "Zoe")))


def archive(path: Path, **arrays: np.ndarray) -> ImageSet:
    pixels = np.zeros((3, 4, 4), np.uint8)
    fields = {"x_train": pixels, "y_train": np.arange(3), "x_test": pixels, "y_test": np.arange(3)}
    np.savez(path, **(fields | arrays))  # pyright: ignore[reportArgumentType]
    return open_npz(path)


@pytest.mark.parametrize("kind", ["U", "S"])
def test_writers_by_name_in_an_archive(tmp_path: Path, kind: str) -> None:
    train, test = np.array(["Zoe", "Ann", "Zoe"], kind), np.array(["Bob", "Ann", "Bob"], kind)
    images = archive(tmp_path / "a.npz", writer_train=train, writer_test=test)
    assert images.user_names == ("Ann", "Bob", "Zoe")
    assert np.asarray(images.users).tolist() == [2, 0, 2, 1, 0, 1]
    assert users_in_both(images) == [0]
    assert images.take(np.array([5])).user_names == images.user_names
    alone = open_images(str(tmp_path / "a.npz"), splits=["train"])
    assert alone.user_names == ("Ann", "Zoe")


def test_labels_by_name_in_an_archive(tmp_path: Path) -> None:
    labels = {"y_train": np.array(["owl", "cat", "owl"]), "y_test": np.array([b"dog"] * 3)}
    images = archive(tmp_path / "a.npz", **labels)
    assert images.class_names == ("cat", "dog", "owl")
    assert images.labels.tolist() == [2, 0, 2, 1, 1, 1]
    assert images.inferred
    declared = open_images(str(tmp_path / "a.npz"), classes=("owl", "dog", "cat", "elk"))
    assert declared.labels.tolist() == [0, 2, 0, 1, 1, 1]
    assert not declared.inferred
    named = archive(tmp_path / "b.npz", names=np.array(["cat", "owl", "dog"]), **labels)
    assert (named.labels.tolist(), named.inferred) == ([1, 0, 1, 2, 2, 2], False)
    rule = r"a\.npz: label must be one of \('owl', 'cat'\), got 'dog' in row 0 of y_test"
    with pytest.raises(ValueError, match=rule):
        open_images(str(tmp_path / "a.npz"), classes=("owl", "cat"))


def test_writers_that_do_not_fit(tmp_path: Path) -> None:
    names, numbers = np.array(["a", "b", "c"]), np.arange(3)
    with pytest.raises(ValueError, match="users must be names in every split, or numbers"):
        archive(tmp_path / "a.npz", writer_train=names, writer_test=numbers)
    with pytest.raises(ValueError, match="writer_train must be integers or names, got float64"):
        archive(tmp_path / "b.npz", writer_train=numbers / 2)
    users = np.array(["a", "", "c"])
    with pytest.raises(ValueError, match=r"user must be given in .* none in row 1 of writer_train"):
        archive(tmp_path / "c.npz", writer_train=users, writer_test=users)
    with pytest.raises(ValueError, match=r"in every split or in none .* got none in test"):
        archive(tmp_path / "d.npz", writer_train=numbers)


def test_parts_with_names_are_numbered_together() -> None:
    one = a_set([0, 1], user_names=("m", "z"))
    two = a_set([0, 1, 1], user_names=("a", "m"))
    whole = concatenate([one, replace(two, skipped=("x",)), two])
    assert whole.user_names == ("a", "m", "z")
    assert np.asarray(whole.users).tolist() == [1, 2, 0, 1, 1, 0, 1, 1]
    assert whole.skipped == ("x",)
