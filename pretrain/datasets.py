"""Images with labels, users and splits, read lazily as uint8 and never unpickled.

By default nobody's images are in both splits.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pretrain import check

TRAIN, TEST, EVALUATION = 0, 1, 2  # evaluation: held out for a private one
MOST_CLASSES = 1 << 20  # limit for classes counted from numeric labels, or declared by number
SPLITS = {"train": TRAIN, "test": TEST, "evaluation": EVALUATION, "val": EVALUATION}
UNLABELLED = -1  # label of every image, and row, of an unlabelled set


class UnreadableImage(ValueError):
    """A picture that cannot be decoded, or is refused; the message names it."""


@dataclass
class Seen:
    """Sizes, modes and bits of the pictures that were decoded so far."""

    modes: set[str] = field(default_factory=set)  # Pillow's words for their channels
    smallest: tuple[int, int] | None = None  # width and height, of the fewest pixels
    largest: tuple[int, int] | None = None
    bits: int | None = None  # in use of pictures that have 16, as the options declare
    dark: str = ""  # how little a picture of 16 bits used of its range
    bright: bool = False  # whether another used more

    def add(self, mode: str, size: tuple[int, int]) -> None:
        """Enters one picture."""
        self.modes.add(mode)
        self.smallest = min(self.smallest or size, size, key=_pixels)
        self.largest = max(self.largest or size, size, key=_pixels)


def _pixels(size: tuple[int, int]) -> tuple[int, int]:
    return size[0] * size[1], size[0]


@dataclass(frozen=True, kw_only=True)
class ImageSet:
    """N images; only labels, users, splits and names are held in memory."""

    name: str
    labels: np.ndarray  # (N,) int64; all -1: unlabelled
    split: np.ndarray  # (N,) uint8: 0 train, 1 test, 2 evaluation
    class_names: tuple[str, ...]
    read: Callable[[np.ndarray], np.ndarray]  # (b,) row numbers -> (b, h, w, 3) uint8
    users: np.ndarray | None = None  # (N,) int64
    inferred: bool = False  # class_names were counted from the labels, not declared
    where: Callable[[int], str] | None = None  # a row's place in its file, for errors
    names: np.ndarray | None = None  # (N,) UTF-8 bytes; see `encode_names`
    user_names: tuple[str, ...] = ()  # of the users 0, 1, ...; none where users are mere numbers
    skipped: tuple[tuple[str, str], ...] = ()  # files and folders that are not read, and why
    seen: tuple[Seen, ...] = ()  # what decoding has met so far; () for arrays
    findings: np.ndarray | None = None  # (N, K) int8: 1, 0, -1 unknown; then class_names are theirs
    unknown: str = "negative"  # what unknown findings became; "ask": they stay unknown

    def __post_init__(self) -> None:
        check.no_nan(**{f"classes of {self.name}": self.class_names})
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError(f"classes of {self.name} must be distinct, got {self.class_names}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> bool:
        """Whether its images have labels."""
        return self.findings is not None or bool((self.labels != UNLABELLED).any())

    @property
    def dark(self) -> str:
        """How little a picture of 16 bits used of its range, if none that was read used more."""
        if any(seen.bright for seen in self.seen):
            return ""
        return next((seen.dark for seen in self.seen if seen.dark), "")

    def refuse_dark(self) -> None:
        """Raises ValueError if it is `dark`: it would be seen nearly black."""
        if self.dark:
            raise ValueError(
                f"{self.name}: pictures of 16 bits must use 1/16 of their range (or pass --bits 12 "
                f"where 12 are in use, --bits 16 for dark pictures), got at most {self.dark}"
            )

    def refuse_lost(self, lost: Sequence[int], why: str) -> None:
        """Raises ValueError if a user or class has images, and all are among the lost rows."""
        kept = np.ones(len(self), bool)
        kept[list(lost)] = False
        for what, of, names in (
            ("user", self.users, self.user_names),
            ("class", self.labels if self.labels.max() >= 0 else None, self.class_names),
        ):
            if of is not None and len(gone := np.setdiff1d(of, of[kept])):
                name = names[gone[0]] if names else gone[0]
                raise ValueError(
                    f"{self.name}: every {what} must keep an image (or be left out of the data), "
                    f"got {(of == gone[0]).sum()} of {what} {name} and none readable; {why}"
                )

    def need_labels(self) -> None:
        """Raises ValueError unless its images have labels."""
        if not self.labelled:
            raise ValueError(f"images must have labels, got {self.name} without any")

    def image_name(self, row: int) -> str:
        """Name of an image in lists of results; its place if it has none."""
        return self.place(row) if self.names is None else decode_name(self.names[row])

    def images(self, rows: np.ndarray | slice) -> np.ndarray:
        """The images of the given rows, (b, 3, h, w) uint8."""
        index = np.arange(len(self))[rows]
        return np.ascontiguousarray(self.read(index).transpose(0, 3, 1, 2))

    def place(self, row: int) -> str:
        """Description of a row's image for errors."""
        return f"{self.name}: row {row}" if self.where is None else self.where(row)

    def take(self, rows: np.ndarray | slice) -> "ImageSet":
        """The set restricted to the given rows, in the given order."""
        index = np.arange(len(self))[rows]
        return replace(
            self,
            labels=self.labels[index],
            split=self.split[index],
            users=None if self.users is None else self.users[index],
            read=lambda inner: self.read(index[inner]),
            where=lambda row: self.place(int(index[row])),
            names=None if self.names is None else self.names[index],
            findings=None if self.findings is None else self.findings[index],
        )


def concatenate(parts: Sequence[ImageSet]) -> ImageSet:
    """One set with the rows of all parts in order; names only if every part has them.

    Users with names are renumbered in the order of all names.

    Raises:
        ValueError: only some parts have labels, users, or names of users.
    """
    if len({part.labelled for part in parts}) > 1:
        raise ValueError(f"{parts[0].name}: every split must have labels, or none, got some")
    starts = np.cumsum([0] + [len(part) for part in parts])

    def read(rows: np.ndarray) -> np.ndarray:
        owner = np.searchsorted(starts, rows, side="right") - 1
        pieces = {k: (owner == k).nonzero()[0] for k in np.unique(owner).tolist()}
        blocks = [(at, parts[k].read(rows[at] - starts[k])) for k, at in pieces.items()]
        if len({block.shape[1:] for _, block in blocks}) > 1:
            raise ValueError(f"{parts[0].name}: all images must have one size, got mixed sizes")
        out = np.empty((len(rows), *blocks[0][1].shape[1:]), np.uint8)
        for at, block in blocks:
            out[at] = block
        return out

    def where(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return parts[part].place(row - int(starts[part]))

    users, user_names = _together(parts)
    findings = [part.findings for part in parts if part.findings is not None]
    names = [part.names for part in parts if part.names is not None]
    return ImageSet(
        name=parts[0].name,
        labels=np.concatenate([part.labels for part in parts]),
        split=np.concatenate([part.split for part in parts]),
        class_names=max((part.class_names for part in parts), key=len),
        users=users,
        user_names=user_names,
        inferred=any(part.inferred for part in parts),
        read=read,
        where=where,
        names=np.concatenate(names) if len(names) == len(parts) else None,
        findings=np.concatenate(findings) if findings else None,
        skipped=tuple(file for part in parts for file in part.skipped),
        seen=tuple(seen for part in parts for seen in part.seen),
    )


def _together(parts: Sequence[ImageSet]) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """(N,) users of all parts, and their names."""
    users = [part.users for part in parts if part.users is not None]
    if not users:
        return None, ()
    if len(users) < len(parts):
        raise ValueError(f"{parts[0].name}: every split must have users, or none, got some")
    if len({bool(part.user_names) for part in parts}) > 1:
        raise ValueError(f"{parts[0].name}: users must be names in every split, or numbers")
    names = sorted({name for part in parts for name in part.user_names})
    place = {name: number for number, name in enumerate(names)}
    for k, part in enumerate(parts):
        if names:
            users[k] = np.array([place[name] for name in part.user_names], np.int64)[users[k]]
    return np.concatenate(users), tuple(names)


def declared_classes(num_classes: int | None, names: Sequence[str] = ()) -> tuple[str, ...]:
    """Class names that a command declares: the given names, or numbers; () if none are declared.

    Raises:
        ValueError: both, fewer than two classes, or a name twice.
    """
    if num_classes is None and not names:
        return ()
    if num_classes is not None and names:
        raise ValueError(f"only one of num_classes and class_names must be given, got {names} too")
    check.within(f"[2, {MOST_CLASSES}]", **check.drop_none(num_classes=num_classes))
    declared = tuple(names) or tuple(map(str, range(num_classes or 0)))
    if len(declared) < 2:
        raise ValueError(f"class_names must be two or more, got {names}")
    if len(set(declared)) < len(declared):
        raise ValueError(f"class_names must be distinct, got {declared}")
    return declared


def check_labels(where: str, labels: np.ndarray, count: int, num_classes: int | None) -> None:
    """Checks that there is one integer label in [0, num_classes) for each image.

    Raises:
        ValueError: naming `where`, the first offending row and the rule.
    """
    if labels.shape != (count,):
        raise ValueError(
            f"{where} must have one label for each of {count} images, got {labels.shape}"
        )
    if not count:
        raise ValueError(f"{where} must label at least one image, got 0")
    if not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{where} must be integers, got {labels.dtype}")
    bad = labels.astype(np.int64) < 0
    if num_classes is not None:
        bad |= labels.astype(np.int64) >= num_classes
    if bad.any():
        row = int(bad.argmax())
        upper = "" if num_classes is None else f" and < {num_classes}"
        raise ValueError(f"{where}: row {row} must be >= 0{upper}, got {labels[row]}")


def encode_names(names: Sequence[str]) -> np.ndarray:
    r"""(N,) bytes of one width, UTF-8; file names that are not UTF-8 keep their bytes.

    Raises:
        ValueError: a name ends with a null character, which the array would drop.

    Examples:
        >>> encode_names(["cat/1.png", "ü"])
        array([b'cat/1.png', b'\xc3\xbc'], dtype='|S9')
    """
    if any(name.endswith("\0") for name in names):
        raise ValueError("names must not end with a null character, got one that does")
    return np.array([name.encode("utf-8", "surrogateescape") for name in names], "S")


def decode_name(name: Any) -> str:
    """Decodes one entry of `encode_names`.

    Examples:
        >>> decode_name(encode_names(["ü"])[0])
        'ü'
    """
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name)


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
