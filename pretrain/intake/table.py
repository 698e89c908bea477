"""Table with a row per image, in words, made into an `ImageSet` with numbers."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pretrain.datasets import SPLITS, TRAIN, UNLABELLED, ImageSet, encode_names
from pretrain.intake.decode import Pictures
from pretrain.intake.files import same_file
from pretrain.intake.labels import (
    FLAGS,
    Cell,
    Cells,
    as_cell,
    numbered,
    several_findings,
    unlabelled_rows,
    user_numbers,
)
from pretrain.intake.reading import (
    Reading,
    Skipped,
    canonical_name,
    print_all,
    refuse_unknown_splits,
    split_named,
)

PATH = ("path", "file", "file_name", "image", "file_path", "image_path", "image_index", "img")
LABEL = ("label", "labels", "cls", "class", "finding", "finding_labels", "diagnosis", "target")
USER = ("user", "patient", "client", "writer", "site", "subject")
USUAL = {
    "path": PATH,
    "label": LABEL,
    "user": tuple(name for user in USER for name in (user, f"{user}_id")),
    "split": ("split",),
}
PLAIN = {
    "path": ("path", "image"),
    "label": ("label", "cls"),
    "user": ("user",),
    "split": ("split",),
}
UNKNOWN = ("", "-1", "-1.0")  # in a column for a finding: not said, or uncertain


def folded(header: str) -> str:
    """Header without case, blanks, hyphens and underscores.

    Examples:
        >>> folded("Patient ID"), folded("patient_id")
        ('patientid', 'patientid')
    """
    return re.sub(r"[\s_-]+", "", canonical_name(header).casefold())


class Flags:
    """Columns that hold 0 and 1 in every row: findings, if there are several and no label."""

    def __init__(self) -> None:
        self.columns: dict[str, bool] = {}  # name -> whether it holds 0 and 1 only

    def note(self, column: str, values: Iterable[Any]) -> None:
        """Notes some cells of a column."""
        if self.columns.setdefault(column, True):
            words = {str("" if value is None else value) for value in values}
            known = {*FLAGS, *UNKNOWN}
            self.columns[column] = all(word.strip().casefold() in known for word in words)

    def refuse(self, where: str) -> None:
        """Raises ValueError if there are several such columns, which cannot be one label."""
        names = sorted(name for name, held in self.columns.items() if held and name)
        if len(names) > 1:
            remedy = "--columns label= for rows without labels"
            got = f"columns {', '.join(names)} (or pass {remedy})"
            raise several_findings(f"{where}: label", got, names)


def choose(
    where: str, found: Sequence[str], reading: Reading, **usual: Sequence[str]
) -> dict[str, str]:
    """Column of path, label, user and split: the named one, else a usual one; "" if there is none.

    Args:
        where: the file, for errors.
        found: columns of its table.
        reading: columns that were named; "" is none.
        **usual: names that come before the usual ones of a part, as they are spelled.

    Raises:
        ValueError: a named column is missing, no column holds the images, or several the users.
    """
    chosen: dict[str, str] = {}
    for part, names in USUAL.items():
        named = reading.named_columns.get(part)
        if named is None:
            chosen[part] = _usual(where, found, part, (*usual.get(part, ()), *names))
        else:
            chosen[part] = named and _named(where, found, part, named)
    if reading.label_is and "label" not in reading.named_columns:
        own = [name for name in found if folded(name) == folded(reading.label_is)]
        if own and chosen["label"] not in ("", own[0]):
            raise ValueError(
                f"columns must give label= for {where}, where --label-is {reading.label_is} may "
                f"be column {own[0]!r} or a label in column {chosen['label']!r}, got none"
            )
        chosen["label"] = own[0] if own else chosen["label"]
    if not chosen["path"]:
        raise ValueError(
            f"columns must give path= for {where}, which has no 'path' or 'image' in its first "
            f"row, got columns {', '.join(found)}"
        )
    return chosen


def taken_by_synonym(
    where: str, found: Sequence[str], chosen: Mapping[str, str], reading: Reading
) -> list[str]:
    """Lines for the output: columns that were taken by another name than the plain one."""
    others, lines = [name for name in found if name and name not in chosen.values()], []
    if not chosen["label"] and "label" not in reading.named_columns:
        named = (
            f", none in columns {', '.join(others)} (or pass --columns label=NAME)"
            if others
            else ""
        )
        lines.append(f"{where}: no labels: rows for public use or prediction only{named}")
    for part, name in chosen.items():
        if name and part not in reading.named_columns and folded(name) not in PLAIN[part]:
            option = f"--columns {part}=NAME chooses another"
            option += f", {part}= none" if part != "path" else ""
            lines.append(f"{where}: {part} is column {name!r} ({option})")
    return lines


def is_finding(column: str, reading: Reading) -> bool:
    """Whether a column of labels says 0 or 1 of the finding that `label_is` asks for."""
    return bool(reading.label_is and column) and folded(column) == folded(reading.label_is or "")


def _named(where: str, found: Sequence[str], part: str, named: str) -> str:
    alike = [name for name in found if name == named] or _alike(found, named)
    if len(alike) != 1:
        rule = f"columns must give {part}= one of {', '.join(found)}"
        raise ValueError(f"{where}: {rule}, got {named!r}")
    return alike[0]


def _usual(where: str, found: Sequence[str], part: str, names: Iterable[str]) -> str:
    """Column of the first name that is one; users by two of the names may be two kinds of users."""
    taken: list[str] = []
    for name in names:
        alike = [each for each in found if each == name] or _alike(found, name)
        if len(alike) > 1 and not taken:
            raise ValueError(
                f"columns must give {part}= one of {', '.join(alike)} in {where}, got none"
            )
        taken += [each for each in alike if each not in taken]
    plain = bool(taken) and folded(taken[0]) in PLAIN[part]
    if part == "user" and len(taken) > 1 and not plain:
        raise ValueError(
            f"columns must give user= for {where}, whose users may be in any of the columns "
            f"{', '.join(taken)}, got none"
        )
    return taken[0] if taken else ""


def _alike(found: Sequence[str], name: str) -> list[str]:
    return [each for each in found if folded(each) == folded(name)]


@dataclass
class Table:
    """Name, label, user and split of every image, filled while a source is read."""

    source: str  # file or directory, for errors
    reading: Reading
    names: list[str] = field(default_factory=list)
    labels: list[Cell] = field(default_factory=list)
    users: list[Cell] = field(default_factory=list)
    splits: list[Cell] = field(default_factory=list)
    class_names: tuple[str, ...] = ()  # as the source declares them
    skipped: list[Skipped] = field(default_factory=list)  # files that are no pictures
    notes: list[str] = field(default_factory=list)  # lines for the output
    flags: Flags = field(default_factory=Flags)
    is_finding: bool = False  # labels say whether a picture has the finding that is asked for
    seeks_label: bool = False  # no column has labels, so that others may be findings

    @cached_property
    def encoded_names(self) -> np.ndarray:
        """(N,) bytes; see `encode_names`."""
        return encode_names(self.names)

    def choose(
        self, found: Sequence[str], where: str = "", **usual: Sequence[str]
    ) -> dict[str, str]:
        """Columns of the parts of a row, as `headers.choose` says; notes what should be said."""
        chosen = choose(where or self.source, found, self.reading, **usual)
        said = taken_by_synonym(self.source, found, chosen, self.reading)
        self.notes += [note for note in said if note not in self.notes]
        self.is_finding = is_finding(chosen["label"], self.reading)
        self.seeks_label = not chosen["label"] and "label" not in self.reading.named_columns
        return chosen

    def declare(self, classes: tuple[str, ...], part: str) -> None:
        """Sets the classes, before the rows of a part are added.

        Raises:
            ValueError: an earlier part declared others.
        """
        if self.class_names not in ((), classes):
            raise ValueError(
                f"{self.source}: classes of {part} must be those of the parts before it, "
                f"{self.class_names} (or pass --splits with those to read), got {classes}"
            )
        self.class_names = classes

    def add(self, name: str, label: Any = None, user: Any = None, split: Any = None) -> None:
        """Appends a row; labels that are whole numbers mean the classes that are declared."""
        self.names.append(name)
        try:
            self.labels.append(as_cell(self._named(label) if self.class_names else label))
            self.users.append(as_cell(user))
            self.splits.append(as_cell(split))
        except ValueError as error:
            raise ValueError(
                f"{self.source}: {error} in {self._row(len(self.names) - 1)}"
            ) from error

    def _named(self, label: Any) -> Any:
        if isinstance(label, list):
            return [self._named(each) for each in label]
        known = type(label) is int and 0 <= label < len(self.class_names)
        return self.class_names[label] if known else label

    def image_set(
        self,
        name: str,
        fetch: Callable[[np.ndarray], Iterable[bytes]],
        where: Callable[[int], str],
        file: Callable[[int], Path | None] | None = None,
    ) -> ImageSet:
        """Makes the image set, restricted to the splits that the options name.

        Rows of other splits are not looked at. Where training rows have labels, held-out splits
        without any are left out. What was done is printed on stderr once all has been read.

        Args:
            name: name of the set.
            fetch: (b,) row numbers -> bytes of the pictures.
            where: row number -> its place, for errors.
            file: row number -> its file, None for pictures in the table; None: no file is new.

        Raises:
            ValueError: no row, an invalid label, user or split, or one picture in two rows.
        """
        reading = self.reading
        if self.seeks_label:
            self.flags.refuse(self.source)
        if not self.names:
            raise ValueError(f"{self.source} must hold at least one image, got none")
        split, rows = self._splits(reading.splits)
        labels, splits = (Cells.of(each, rows, self._row) for each in (self.labels, self.splits))
        held, say = self.class_names, self.notes.append
        kept = ~unlabelled_rows(labels, splits, self.source, reading.classes or held, say)
        rows, labels = rows[kept], labels.taken(kept)
        numbers, classes, inferred = numbered(
            labels, self.source, held, reading, say, is_finding=self.is_finding
        )
        owners = Cells.of(self.users, rows, self._row)
        users, user_names = user_numbers(owners, self.source, say)
        if file is not None:
            self._refuse_same_file(rows, file)
        read = Pictures(fetch=fetch, where=where, source=self.source, reading=reading)
        whole = ImageSet(
            name=name,
            labels=self._everywhere(numbers, rows),
            split=split,
            class_names=classes,
            users=None if users is None else self._everywhere(users, rows),
            user_names=user_names,
            inferred=inferred,
            read=read,
            seen=(read.seen,),
            where=where,
            names=self.encoded_names,
            skipped=tuple(self.skipped),
        )
        print_all(self.notes)
        return whole if len(rows) == len(whole) else whole.take(rows)

    def _row(self, row: int) -> str:
        name = self.names[row]
        return name if name == f"row {row}" else f"row {row} ({name})"

    def _everywhere(self, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(N,) values, where those of the chosen rows are known; others are left out later."""
        whole = np.full(len(self.names), UNLABELLED, np.int64)
        whole[rows] = values
        return whole

    def _splits(self, chosen: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(N,) uint8 splits, and (n,) numbers of the rows of the chosen ones."""
        cells = Cells.of(self.splits, np.arange(len(self.names)), self._row)
        if cells.distinct == [""]:
            if chosen and "train" not in chosen:
                raise ValueError(f"splits must be train for {self.source}, which has no others")
            return np.zeros(len(self.names), np.uint8), np.arange(len(self.names))
        words = {cell: str(cell) for cell in cells.distinct}
        meant = {cell: split_named(word) for cell, word in words.items()}
        if not chosen:
            first = {word: cells.first(cell) for cell, word in words.items()}
            refuse_unknown_splits(self.source, words.values(), first)
        kept = cells.numbers({c: not chosen or s in chosen for c, s in meant.items()}) == 1
        if not kept.any():
            raise ValueError(f"{self.source} must hold rows of {', '.join(chosen)}, got none")
        numbers = {cell: SPLITS.get(split or "", TRAIN) for cell, split in meant.items()}
        return cells.numbers(numbers).astype(np.uint8), np.flatnonzero(kept)

    def _refuse_same_file(self, rows: np.ndarray, file: Callable[[int], Path | None]) -> None:
        pair = same_file(rows, file)
        if pair is None:
            return
        first, second = (self._row(row) for row in pair)
        users = [self.users[row] for row in pair]
        whose = f", of users {users[0]!r} and {users[1]!r}" if len(set(users)) > 1 else ""
        raise ValueError(
            f"{self.source} must name every file once, since a picture is one row and one user's "
            f"(leave one row out), got it in {first} and {second}{whose}"
        )
