"""Training and test users: by default nobody's images are in both splits."""

import hashlib
from dataclasses import replace

import numpy as np

from pretrain import check
from pretrain.datasets import TEST, TRAIN, ImageSet

SHOWN = 3


def refuse_users_in_both(images: ImageSet) -> None:
    """Raises ValueError if a user has training and test images.

    A model would then know the users it is tested on, and its accuracy would not be that for new
    users.
    """
    if both := users_in_both(images):
        named = ", ".join(_name(images, user) for user in both[:SHOWN])
        raise ValueError(
            f"users of {images.name} must not be in train and test both (or pass "
            f"--allow-users-in-both-splits), got {len(both)} who are: {named}"
            f"{', ...' if len(both) > SHOWN else ''}"
        )


def users_in_both(images: ImageSet) -> list[int]:
    """Users with training and test images."""
    if images.users is None:
        return []
    train, test = (np.unique(images.users[images.split == part]) for part in (TRAIN, TEST))
    return np.intersect1d(train, test).tolist()


def hold_out_users(images: ImageSet, share: float) -> ImageSet:
    """Makes all images of a share of the users test images.

    The test users are those with the smallest hashes of their public names, so the choice is the
    same every time.

    Args:
        images: training images only.
        share: share of the users, in (0, 1), rounded to a whole number of them.

    Raises:
        ValueError: a share out of range, or of no user or all; existing test images, or unknown
            users.
    """
    check_test_share(images, share)
    if images.users is None:
        raise ValueError(
            f"test_share must have users to divide (or pass --test-share image:{share:g}), "
            f"got {images.name} without any"
        )
    each = np.unique(images.users[images.split == TRAIN])
    count = count_of_tests(len(each), share, "users")
    order = np.argsort([_hash(images, int(user)) for user in each], kind="stable")
    split = images.split.copy()
    split[(images.split == TRAIN) & np.isin(images.users, each[order[:count]])] = TEST
    return replace(images, split=split)


def check_test_share(images: ImageSet, share: float) -> None:
    """Raises ValueError for a share outside (0, 1), or a set that has test images."""
    check.within("(0, 1)", test_share=share)
    if (images.split == TEST).any():
        raise ValueError(f"test_share must be left out for {images.name}, which has test images")


def count_of_tests(of: int, share: float, what: str) -> int:
    """Number of test users or records.

    Raises:
        ValueError: there are fewer than two, or it is none or all of them.
    """
    if of < 2:
        raise ValueError(f"test_share must have two or more {what} to divide, got {of}")
    count = round(share * of)
    if not 0 < count < of:
        part = "all" if count else "none"
        raise ValueError(
            f"test_share must take some of {of} {what} and leave some, got {share}, {part} of them"
        )
    return count


def _name(images: ImageSet, user: int) -> str:
    return images.user_names[user] if images.user_names else str(user)


def _hash(images: ImageSet, user: int) -> int:
    name = f"user {_name(images, user)}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
