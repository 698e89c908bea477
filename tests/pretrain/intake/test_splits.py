"""Users are whole: in train or in test, unless somebody asks for both."""

from dataclasses import replace

import numpy as np
import pytest

from pretrain.datasets import (
    ImageSet,
    concatenate,
    hold_out_users,
    refuse_users_in_both,
    users_in_both,
)


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


def test_whole_users_are_held_out_whatever_order_the_rows_are_in() -> None:
    users = [k // 3 for k in range(60)]
    held = hold_out_users(a_set(users), 0.25)
    assert not users_in_both(held)
    assert held.users is not None
    assert len(set(held.users[held.split == 1].tolist())) == 5
    assert (held.split == 1).sum() == 15
    order = np.random.default_rng(0).permutation(60)
    again = hold_out_users(a_set([users[k] for k in order]), 0.25)
    assert (again.split == held.split[order]).all()
    held = hold_out_users(a_set([0, 1, 2, 3], [0, 0, 2, 2]), 0.5)
    assert held.split.tolist()[2:] == [2, 2]  # rows held out for evaluation stay so
    assert sorted(held.split.tolist()[:2]) == [0, 1]


def test_it_is_names_that_decide_not_their_numbers() -> None:
    names = tuple(f"clinic {k}" for k in range(20))
    users = [k % 20 for k in range(60)]
    first = hold_out_users(a_set(users, user_names=names), 0.3)
    other = hold_out_users(a_set([19 - k for k in users], user_names=names[::-1]), 0.3)
    assert (first.split == other.split).all()
    assert (first.split == 1).sum() == 18
    numbered = hold_out_users(a_set(users), 0.3)
    assert (numbered.split != first.split).any()


@pytest.mark.parametrize(
    ("images", "share", "rule"),
    [
        (a_set([0, 0, 1]), 0.001, "some of 2 users and leave some, got 0.001, none of them"),
        (a_set([0, 0, 1]), 0.999, "some of 2 users and leave some, got 0.999, all of them"),
        (a_set([0, 1], [0, 1]), 0.5, "must be left out for set, which has test images"),
        (a_set(None), 0.5, r"must have users to divide \(or .*--test-share image:0\.5\)"),
        (a_set([7, 7]), 0.5, "must have two or more users to divide, got 1"),
    ],
)
def test_shares_that_cannot_be(images: ImageSet, share: float, rule: str) -> None:
    with pytest.raises(ValueError, match=f"test_share must .*{rule.removeprefix('must ')}"):
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


def test_parts_with_names_are_numbered_together() -> None:
    one = a_set([0, 1], user_names=("m", "z"))
    two = a_set([0, 1, 1], user_names=("a", "m"))
    whole = concatenate([one, replace(two, skipped=("x",)), two])
    assert whole.user_names == ("a", "m", "z")
    assert np.asarray(whole.users).tolist() == [1, 2, 0, 1, 1, 0, 1, 1]
    assert whole.skipped == ("x",)
