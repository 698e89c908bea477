"""Cells of a table: words in one spelling, and lists of words."""

import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from pretrain.intake.names import canonical_name

INTEGER = re.compile(r"-?(0|[1-9]\d*)")
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?", re.ASCII)
MISSING = frozenset(  # casefolded, as pandas, R and Excel write what they do not have
    {
        *("na", "n/a", "nan", "<na>", "null", "#n/a"),
        *("#ref!", "#value!", "#name?", "#null!", "#num!", "#div/0!"),
    }
)


@dataclass(frozen=True)
class Several:
    """Cell that holds a list of words, or a word for each of its fields."""

    words: tuple[str, ...]
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The cell in errors."""
        each = self.words
        if self.fields:
            each = [f"{k}: {word}" for k, word in zip(self.fields, self.words, strict=True)]
        return f"[{', '.join(each)}]"


Cell = str | Several


def as_word(value: Any) -> str:
    """Text of a cell in the spelling of `canonical_name`; "" where it is empty.

    Examples:
        >>> [as_word(value) for value in (None, float("nan"), 3, 3.0, b" cat", True)]
        ['', '', '3', '3', 'cat', 'True']
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"names must be text in UTF-8, got {value[:40]!r}") from error
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return sys.intern(canonical_name(str(value)))  # memory holds every word once


def as_cell(value: Any) -> Cell:
    """Word of a value, or the words of a list, an array or a dict; a cell is itself."""
    if isinstance(value, Several):
        return value
    if isinstance(value, dict):
        fields = tuple(as_word(name) for name in value)
        return Several(tuple(map(as_word, value.values())), fields)
    if isinstance(value, list | tuple | np.ndarray):
        return Several(tuple(map(as_word, value)))
    return as_word(value)


def sorted_words(words: Iterable[str]) -> list[str]:
    """Sorts by size where all words are integers, else as text.

    Examples:
        >>> sorted_words(["10", "9"]), sorted_words(["10", "9", "a"])
        (['9', '10'], ['10', '9', 'a'])
    """
    words = list(words)
    return sorted(words, key=int) if all(map(INTEGER.fullmatch, words)) else sorted(words)


def number_twins(words: Iterable[str]) -> tuple[str, str] | None:
    """Two words that are one number, if there are any.

    Examples:
        >>> number_twins(["0", "1", "0.0"]), number_twins(["01", "2"])
        (('0', '0.0'), None)
    """
    known: dict[Decimal, str] = {}
    for word in sorted(words):
        if NUMBER.fullmatch(word) and known.setdefault(Decimal(word), word) != word:
            return known[Decimal(word)], word
    return None


@dataclass(frozen=True)
class Cells:
    """Cells of some rows of a column."""

    distinct: list[Cell]
    codes: np.ndarray  # (n,) places in `distinct`
    rows: np.ndarray  # (n,) numbers of the rows in their source
    place: Callable[[int], str]  # number of a row -> its description for errors

    @classmethod
    def of(cls, column: Sequence[Cell], rows: np.ndarray, place: Callable[[int], str]) -> "Cells":
        """Cells of some rows of a column, (n,) of their numbers; `place` describes one."""
        known: dict[Cell, int] = {}
        codes = [known.setdefault(column[row], len(known)) for row in rows.tolist()]
        return cls(list(known), np.array(codes, np.int64), rows, place)

    def __len__(self) -> int:
        return len(self.codes)

    def first(self, cell: Cell) -> str:
        """Description of the first row that holds a cell."""
        return self.place(int(self.rows[(self.codes == self.distinct.index(cell)).argmax()]))

    def numbers(self, number: Mapping[Any, int]) -> np.ndarray:
        """(n,) int64 number of every row's cell."""
        return np.array([number[cell] for cell in self.distinct], np.int64)[self.codes]

    def taken(self, kept: np.ndarray) -> "Cells":
        """Cells of the rows that `kept`, (n,) bool, selects."""
        present, codes = np.unique(self.codes[kept], return_inverse=True)
        distinct = [self.distinct[code] for code in present.tolist()]
        return Cells(distinct, codes, self.rows[kept], self.place)

    @classmethod
    def numbered(cls, parts: Mapping[str, Sized]) -> "Cells":
        """Name of its part for each row of all parts."""
        lengths = [len(part) for part in parts.values()]
        codes = np.repeat(np.arange(len(lengths)), lengths)
        return cls(list(parts), codes, np.arange(len(codes)), lambda row: f"row {row}")

    @classmethod
    def joined(cls, parts: Sequence["Cells"]) -> "Cells":
        """Cells of all parts, one after the other; a row is described as its part does."""
        number = {cell: 0 for part in parts for cell in part.distinct}
        number = {cell: code for code, cell in enumerate(number)}
        starts = np.cumsum([0, *map(len, parts)])

        def place(row: int) -> str:
            part = int(np.searchsorted(starts, row, side="right")) - 1
            return parts[part].place(int(parts[part].rows[row - starts[part]]))

        codes = [part.numbers(number) for part in parts]
        return cls(list(number), np.concatenate(codes), np.arange(starts[-1]), place)

    def refuse_missing(self, what: str, known: Sequence[str] = ()) -> None:
        """Raises ValueError for a cell that is empty, or says that a value is missing."""
        for cell in self.distinct:
            if cell == "":
                rule = "must be given in every row or in none"
                got = f"none in {self.first(cell)}: fill it or leave the row out"
                raise ValueError(f"{what} {rule}, got {got}")
            if isinstance(cell, str) and cell.casefold() in MISSING and cell not in known:
                remedy = " (or be declared with --class-names)" * what.endswith("label")
                rule = f"must be a name{remedy}, or empty in every row"
                raise ValueError(f"{what} {rule}, got {cell!r} in {self.first(cell)}")
