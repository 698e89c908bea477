"""Which users test: nobody's images are both learned from and tested on, unless somebody asks."""

import hashlib
from dataclasses import replace
from typing import Literal

import numpy as np

from pretrain.datasets import TEST, TRAIN, ImageSet

By = Literal["user", "record"]
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


def hold_out(images: ImageSet, share: float, by: By = "user") -> ImageSet:
    """The set with a share of its users, or of its records, as test images.

    Who tests is settled by hashes of names, so that it is the same whenever it is asked for: those
    with the least ones.

    Args:
        images: training images only.
        share: in (0, 1), of the users or records; at least one tests and one does not.
        by: whole users, or records whoever they belong to.

    Raises:
        ValueError: a share out of range, test images already, or users that nobody named.
    """
    if not 0 < share < 1:
        raise ValueError(f"test_share must lie in (0, 1), got {share}")
    if (images.split == TEST).any():
        raise ValueError(f"test_share must be left out for {images.name}, which has test images")
    if by == "user" and images.users is None:
        raise ValueError(
            f"test_share must have users to divide (or pass --split-by record), got {images.name} "
            "without any"
        )
    train = np.flatnonzero(images.split == TRAIN)
    owners = train if by == "record" or images.users is None else images.users[train]
    each = np.unique(owners)
    if len(each) < 2:
        raise ValueError(f"test_share must have two or more {by}s to divide, got {len(each)}")
    count = min(len(each) - 1, max(1, round(share * len(each))))
    order = np.argsort([_hash(images, by, int(k)) for k in each], kind="stable")
    split = images.split.copy()
    split[train[np.isin(owners, each[order[:count]])]] = TEST
    return replace(images, split=split)


def _name(images: ImageSet, user: int) -> str:
    return images.user_names[user] if images.user_names else str(user)


def _hash(images: ImageSet, by: By, number: int) -> int:
    if by == "user":
        name = _name(images, number)
    else:
        name = str(number) if images.names is None else images.image_name(number)
    return int.from_bytes(hashlib.sha256(f"{by} {name}".encode()).digest()[:7], "big")
