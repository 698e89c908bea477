"""Table with a row per image, in words, made into an `ImageSet` with numbers."""

import math
import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pretrain.datasets import MOST_CLASSES, SPLITS, UNLABELLED, ImageSet, encode_names
from pretrain.intake.decode import Pictures
from pretrain.intake.names import Skipped
from pretrain.intake.reading import Reading

OTHER_WORDS = {"training": "train", "validation": "val", "valid": "val", "dev": "val"}
INTEGER = re.compile(r"-?(0|[1-9]\d*)")


def as_word(value: Any) -> str:
    """Text of a cell; "" where it is empty.

    Examples:
        >>> [as_word(value) for value in (None, float("nan"), 3, 3.0, b"cat", True)]
        ['', '', '3', '3', 'cat', 'True']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        value = value.decode()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)


def sorted_words(words: Iterable[str]) -> list[str]:
    """Sorts by size where all words are integers, else as text.

    Examples:
        >>> sorted_words(["10", "9"]), sorted_words(["10", "9", "a"])
        (['9', '10'], ['10', '9', 'a'])
    """
    words = list(words)
    return sorted(words, key=int) if all(map(INTEGER.fullmatch, words)) else sorted(words)


class Column:
    """Words of a column as whole numbers, so that memory holds every word once."""

    def __init__(self) -> None:
        self._codes, self._words = array("q"), dict[str, int]()

    def add(self, value: Any) -> None:
        """Appends a cell."""
        word = as_word(value)
        self._codes.append(self._words.setdefault(word, len(self._words)))

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def words(self) -> list[str]:
        """Distinct words that are not empty, sorted."""
        return sorted_words(word for word in self._words if word)

    def first_row(self, word: str) -> int:
        """First row that holds a word."""
        return self._codes.index(self._words[word])

    def is_empty(self, what: str) -> bool:
        """Whether every row is empty.

        Raises:
            ValueError: only some do.
        """
        if "" in self._words and len(self._words) > 1:
            row = self.first_row("")
            raise ValueError(f"{what} must be given in every row or in none, got none in row {row}")
        return set(self._words) <= {""}

    def numbers(self, order: Sequence[str]) -> np.ndarray:
        """(N,) int64 places of the words in `order`, which holds all of them."""
        place = {word: number for number, word in enumerate(order)}
        lookup = np.array([place.get(word, -1) for word in self._words], np.int64)
        return lookup[np.frombuffer(self._codes, np.int64)]


@dataclass
class Table:
    """Name, label, user and split of every image, filled while a source is read."""

    source: str  # file or directory, for errors
    names: list[str] = field(default_factory=list)
    labels: Column = field(default_factory=Column)
    users: Column = field(default_factory=Column)
    splits: Column = field(default_factory=Column)
    class_names: tuple[str, ...] = ()  # as the source declares them
    skipped: list[Skipped] = field(default_factory=list)  # files that are no pictures

    @cached_property
    def encoded_names(self) -> np.ndarray:
        """(N,) bytes; see `encode_names`."""
        return encode_names(self.names)

    def declare(self, classes: tuple[str, ...], parts: str) -> None:
        """Sets the classes; ValueError if an earlier one of the parts declared others."""
        if self.class_names not in ((), classes):
            raise ValueError(f"{self.source}: classes must be {self.class_names} in all {parts}")
        self.class_names = classes

    def add(self, name: str, label: Any = None, user: Any = None, split: Any = None) -> None:
        """Appends a row."""
        self.names.append(name)
        self.labels.add(label)
        self.users.add(user)
        self.splits.add(split)

    def image_set(
        self,
        name: str,
        reading: Reading,
        fetch: Callable[[np.ndarray], Iterable[bytes]],
        where: Callable[[int], str],
    ) -> ImageSet:
        """Makes the image set, restricted to the splits that the options name.

        Args:
            name: name of the set.
            reading: options.
            fetch: (b,) row numbers -> bytes of the pictures.
            where: row number -> its place, for errors.

        Raises:
            ValueError: no row, or an invalid label or split.
        """
        if not self.names:
            raise ValueError(f"{self.source} must hold at least one image, got none")
        split, kept = self._splits(reading.splits)
        labels, classes, inferred = self._labels(reading.classes)
        unnamed = self.users.is_empty(f"{self.source}: user")
        users = () if unnamed else tuple(self.users.words)
        read = Pictures(fetch=fetch, where=where, source=self.source, reading=reading)
        whole = ImageSet(
            name=name,
            labels=labels,
            split=split,
            class_names=classes,
            users=None if unnamed else self.users.numbers(users),
            user_names=users,
            inferred=inferred,
            read=read,
            seen=(read.seen,),
            where=where,
            names=self.encoded_names,
            skipped=tuple(self.skipped),
        )
        return whole if kept.all() else whole.take(np.flatnonzero(kept))

    def _splits(self, chosen: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(N,) uint8 splits, and (N,) bool: rows of the chosen ones."""
        if self.splits.is_empty(f"{self.source}: split"):
            if chosen and "train" not in chosen:
                raise ValueError(f"splits must be train for {self.source}, which has no others")
            return np.zeros(len(self.names), np.uint8), np.ones(len(self.names), bool)
        words = self.splits.words
        meant = [OTHER_WORDS.get(word.lower(), word.lower()) for word in words]
        for word, split in zip(words, meant, strict=True):
            if split not in SPLITS:
                row = self.splits.first_row(word)
                raise ValueError(
                    f"{self.source}: split must be one of {', '.join(SPLITS)}, "
                    f"got {word!r} in row {row}"
                )
        numbers = self.splits.numbers(words)
        kept = np.array([not chosen or split in chosen for split in meant])[numbers]
        if not kept.any():
            raise ValueError(f"{self.source} must hold rows of {', '.join(chosen)}, got none")
        return np.array([SPLITS[split] for split in meant], np.uint8)[numbers], kept

    def _labels(self, declared: tuple[str, ...]) -> tuple[np.ndarray, tuple[str, ...], bool]:
        """(N,) int64 labels, the classes' names, and whether they are only those that occur."""
        what = f"{self.source}: label"
        if self.labels.is_empty(what):
            return np.full(len(self.names), UNLABELLED), declared or self.class_names, False
        words, known = self.labels.words, declared or self.class_names
        if set(words) <= set(known):
            return self.labels.numbers(known), known, False
        if not all(map(INTEGER.fullmatch, words)):
            if known:
                word = next(word for word in words if word not in known)
                row = self.labels.first_row(word)
                raise ValueError(f"{what} must be one of {known}, got {word!r} in row {row}")
            return self.labels.numbers(words), tuple(words), True
        limit = len(known) or MOST_CLASSES
        for word in (words[0], words[-1]):
            if not 0 <= int(word) < limit:
                row = self.labels.first_row(word)
                raise ValueError(f"{what} must be >= 0 and < {limit}, got {word} in row {row}")
        count = int(words[-1]) + 1
        values = np.array(list(map(int, words)), np.int64)[self.labels.numbers(words)]
        return values, known or tuple(map(str, range(count))), not known
