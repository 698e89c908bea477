"""Which users test: nobody's images are both learned from and tested on, unless somebody asks."""

import hashlib
from dataclasses import replace

import numpy as np

from pretrain.datasets import TEST, TRAIN, ImageSet

SHOWN = 3


def refuse_users_in_both(images: ImageSet) -> None:
    """Raises ValueError where a user has training and test images.

    A model then knows the users that it is tested on, and the accuracy is not that on new ones.
    """
    if both := users_in_both(images):
        named = ", ".join(_name(images, user) for user in both[:SHOWN])
        raise ValueError(
            f"users of {images.name} must not be in train and test both (or pass "
            f"--allow-users-in-both-splits), got {len(both)} who are: {named}"
            f"{', ...' if len(both) > SHOWN else ''}"
        )


def users_in_both(images: ImageSet) -> list[int]:
    """The users with training and test images."""
    if images.users is None:
        return []
    train, test = (np.unique(images.users[images.split == part]) for part in (TRAIN, TEST))
    return np.intersect1d(train, test).tolist()


def hold_out_users(images: ImageSet, share: float) -> ImageSet:
    """The set with all images of a share of its users as test images.

    Who tests is settled by hashes of users' names, which are public, so that it is the same
    whenever it is asked for: those with the least ones.

    Args:
        images: training images only.
        share: in (0, 1), of the users; at least one tests and one does not.

    Raises:
        ValueError: a share out of range, test images already, or users that nobody named.
    """
    check_test_share(images, share)
    if images.users is None:
        raise ValueError(
            f"test_share must have users to divide (or pass --split-by record), got {images.name} "
            "without any"
        )
    each = np.unique(images.users[images.split == TRAIN])
    count = count_of_tests(len(each), share, "users")
    order = np.argsort([_hash(images, int(user)) for user in each], kind="stable")
    split = images.split.copy()
    split[(images.split == TRAIN) & np.isin(images.users, each[order[:count]])] = TEST
    return replace(images, split=split)


def check_test_share(images: ImageSet, share: float) -> None:
    """Raises ValueError for a share outside (0, 1), or where the set has test images already."""
    if not 0 < share < 1:
        raise ValueError(f"test_share must lie in (0, 1), got {share}")
    if (images.split == TEST).any():
        raise ValueError(f"test_share must be left out for {images.name}, which has test images")


def count_of_tests(of: int, share: float, what: str) -> int:
    """How many of so many users or records are for testing: at least one, and not all.

    Raises:
        ValueError: there are fewer than two.
    """
    if of < 2:
        raise ValueError(f"test_share must have two or more {what} to divide, got {of}")
    return min(of - 1, max(1, round(share * of)))


def _name(images: ImageSet, user: int) -> str:
    return images.user_names[user] if images.user_names else str(user)


def _hash(images: ImageSet, user: int) -> int:
    name = f"user {_name(images, user)}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big")
