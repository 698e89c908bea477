"""Table with a row per image, in words, made into an `ImageSet` with numbers."""

import re
import sys
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
    UNKNOWN,
    Cell,
    Cells,
    Several,
    as_cell,
    is_nothing,
    numbered,
    several_findings,
    unlabelled_rows,
    unlabelled_where_findings,
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
VALUE = ("value", "present", "presence", "positive")  # 0 or 1 of a row's finding


def folded(header: str) -> str:
    """Header without case, blanks, hyphens and underscores.

    Examples:
        >>> folded("Patient ID"), folded("patient_id")
        ('patientid', 'patientid')
    """
    return re.sub(r"[\s_-]+", "", canonical_name(header).casefold())


FLAG_WORDS = UNKNOWN.union(FLAGS)


class Flags:
    """Columns that hold 0, 1 or unknown in every row: findings, if there are several, no label."""

    def __init__(self, *, kept: bool) -> None:
        self.kept = kept  # whether their words are
        self.declared: tuple[str, ...] = ()  # columns that must be such
        self.odd: dict[str, str | None] = {}  # name -> first other word; None: a column of flags
        self.words: dict[str, list[str]] = {}

    def note(self, column: str, values: Iterable[Any], first: int = 0) -> None:
        """Notes some cells of a column, the next ones, or those from row `first` on."""
        if self.odd.setdefault(column, None) is not None:
            return
        words = [str("" if value is None else value).strip().casefold() for value in values]
        self.odd[column] = next((word for word in words if word not in FLAG_WORDS), None)
        if self.kept:
            held = self.words.setdefault(column, [])
            held += [""] * (first - len(held)) + list(map(sys.intern, words))

    @property
    def names(self) -> list[str]:
        """Columns of flags, sorted."""
        return sorted(name for name, odd in self.odd.items() if odd is None and name)

    def cells(self, where: str, rows: int, declared: tuple[str, ...]) -> list[Several]:
        """(N,) of every row: the declared findings, else those found in some row; [] without."""
        for name in self.declared:
            if odd := self.odd.get(name):
                rule = "must hold 0, 1, or -1 or nothing where unknown"
                raise ValueError(f"{where}: column {name!r} {rule}, got {odd!r}")
        said = [name for name in self.names if not FLAGS.keys().isdisjoint(self.words[name])]
        names = self.declared or tuple(name for name in said if not is_nothing(name))
        columns = [self.words.get(name, []) for name in names]
        padded = [held + [""] * (rows - len(held)) for held in columns]
        fields = declared if self.declared else names
        return [Several(words, fields) for words in zip(*padded, strict=True)]

    def refuse_value(self, where: str) -> None:
        """Raises ValueError for such a column beside rows of a picture and a finding each."""
        if names := self.names:
            raise ValueError(
                f"{where}: the column that says whether a row's finding is present must be called "
                f"{VALUE[0]}, and no other may hold 0 and 1 alone, got {', '.join(names)}"
            )

    def refuse(self, where: str) -> None:
        """Raises ValueError if there are several such columns, which cannot be one label."""
        names = self.names
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
    columns = reading.findings and "label" not in reading.named_columns
    own = [_alike(found, name) for name in reading.classes] if columns else []
    if any(own) and not all(len(each) == 1 for each in own):
        rule = "must have one column for every finding of --class-names, or none"
        lacking = next(n for n, e in zip(reading.classes, own, strict=True) if len(e) != 1)
        raise ValueError(f"{where} {rule} (an empty one: unknown), got no or several {lacking!r}")
    for part, names in USUAL.items():
        if part == "label" and any(own):
            chosen[part] = ""
            continue
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
    if not chosen["label"] and "label" not in reading.named_columns and not reading.findings:
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
    flags: Flags = field(init=False)
    is_finding: bool = False  # labels say whether a picture has the finding that is asked for
    seeks_label: bool = False  # no column has labels, so that others may be findings
    value: str = ""  # column of 0 and 1 for the finding of a row, where a picture has many rows
    places: dict[str, int] | None = None  # row of every name, where rows of a picture are joined
    joined: bool = False  # whether some were

    def __post_init__(self) -> None:
        self.flags = Flags(kept=self.reading.findings)

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
        if self.reading.findings and self.seeks_label:
            own = tuple(name for each in self.reading.classes for name in _alike(found, each))
            if self.flags.declared not in ((), own):
                got = f"{own} after {self.flags.declared}"
                raise ValueError(f"{self.source}: columns must be alike in all parts, got {got}")
            self.flags.declared = own
        return chosen

    def looked_at(self, numbers: Iterable[str]) -> list[str]:
        """Columns that may be findings: those of numbers, and those that are declared."""
        return list(dict.fromkeys([*numbers, *self.flags.declared])) if self.seeks_label else []

    def join_rows(self, found: Sequence[str], chosen: dict[str, str]) -> None:
        """From now on rows of one name are findings of one picture, where those are asked for."""
        if self.reading.findings and chosen["label"]:
            self.places = {}
            values = (_alike(found, name) for name in VALUE)
            self.value = next((each[0] for each in values if each), "")
            chosen["value"] = self.value

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

    def add(
        self,
        name: str,
        label: Any = None,
        user: Any = None,
        split: Any = None,
        value: Any = None,
    ) -> None:
        """Appends a row; labels that are whole numbers mean the classes that are declared.

        With `places`, the label of a known name is one more finding of its row. Where `value` is
        given, it says whether the picture has the finding.
        """
        if value is not None:
            label = {label: value} if label else None
        if self.places is not None and self.places.setdefault(name, len(self.names)) < len(
            self.names
        ):
            self._join(self.places[name], as_cell(label), as_cell(user), as_cell(split))
            return
        self.names.append(name)
        try:
            self.labels.append(as_cell(self._named(label) if self.class_names else label))
            self.users.append(as_cell(user))
            self.splits.append(as_cell(split))
        except ValueError as error:
            raise ValueError(
                f"{self.source}: {error} in {self._row(len(self.names) - 1)}"
            ) from error

    def _join(self, row: int, label: Cell, user: Cell, split: Cell) -> None:
        if (user, split) != (self.users[row], self.splits[row]):
            rule = "a picture must have one user and split in all of its rows"
            got = f"{user} {split} after {self.users[row]} {self.splits[row]}"
            raise ValueError(f"{self.source}: {rule}, got {got} for {self.names[row]}")
        held = self.labels[row]
        self.joined = True
        if "" in (held, label):
            self.labels[row] = held or label
            return
        if isinstance(held, str) or isinstance(label, str):
            self.labels[row] = "|".join(filter(None, (str(held), str(label))))
            return
        said = dict(zip(held.fields, held.words, strict=True))
        (field, word), *_ = zip(label.fields, label.words, strict=True)
        if said.setdefault(field, word) != word:
            got = f"{word} after {said[field]} for {field!r} of {self.names[row]}"
            raise ValueError(f"{self.source}: a finding must have one value, got {got}")
        self.labels[row] = Several(tuple(said.values()), tuple(said))

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
        if reading.findings and self.seeks_label:
            cells = self.flags.cells(self.source, len(self.names), reading.classes)
            self.labels = list[Cell](cells) or self.labels
            taken = set() if not cells else {*cells[0].fields, *self.flags.declared}
            left = ", ".join(name for name in self.flags.odd if name not in taken) or "none"
            shown = ", ".join(cells[0].fields if cells else ()) or "none"
            self.notes.append(f"{self.source}: findings are columns {shown}; not read: {left}")
        elif self.joined and not self.value:
            self.flags.refuse_value(self.source)
        elif self.seeks_label:
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
            labels=self._everywhere(unlabelled_where_findings(numbers), rows),
            split=split,
            class_names=classes,
            users=None if users is None else self._everywhere(users, rows),
            user_names=user_names,
            findings=self._everywhere(numbers, rows) if numbers.ndim == 2 else None,
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
        whole = np.full((len(self.names), *values.shape[1:]), UNLABELLED, values.dtype)
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
