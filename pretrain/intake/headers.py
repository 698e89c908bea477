"""Columns of a table by their headers: path, label, user and split, by usual names in any case."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pretrain.intake.labels import FLAGS, several_findings
from pretrain.intake.names import canonical_name
from pretrain.intake.reading import Reading

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

    def note(self, column: str, value: Any) -> None:
        """Notes a cell."""
        if self.columns.setdefault(column, True):
            word = str("" if value is None else value).strip().casefold()
            self.columns[column] = word in FLAGS or word in UNKNOWN

    def refuse(self, where: str) -> None:
        """Raises ValueError if there are several such columns, which cannot be one label."""
        names = sorted(name for name, held in self.columns.items() if held and name)
        if len(names) > 1:
            remedy = "--label-column '' for rows without labels"
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
        named = reading.columns.get(part)
        if named is None:
            chosen[part] = _usual(where, found, part, (*usual.get(part, ()), *names))
        else:
            chosen[part] = named and _named(where, found, part, named)
    if reading.label_is and "label" not in reading.columns:
        own = [name for name in found if folded(name) == folded(reading.label_is)]
        if own and chosen["label"] not in ("", own[0]):
            raise ValueError(
                f"label_column must be given for {where}, where --label-is {reading.label_is} may "
                f"be column {own[0]!r} or a label in column {chosen['label']!r}, got none"
            )
        chosen["label"] = own[0] if own else chosen["label"]
    if not chosen["path"]:
        raise ValueError(
            f"path_column must be given for {where}, which has no 'path' or 'image' in its first "
            f"row, got columns {', '.join(found)}"
        )
    return chosen


def taken_by_synonym(
    where: str, found: Sequence[str], chosen: Mapping[str, str], reading: Reading
) -> list[str]:
    """Lines for the output: columns that were taken by another name than the plain one."""
    others, lines = [name for name in found if name and name not in chosen.values()], []
    if not chosen["label"] and "label" not in reading.columns:
        named = f", none in columns {', '.join(others)} (or pass --label-column)" if others else ""
        lines.append(f"{where}: no labels: rows for public use or prediction only{named}")
    for part, name in chosen.items():
        if name and part not in reading.columns and folded(name) not in PLAIN[part]:
            option = f"--{part}-column chooses another, '' none"
            option = option if part != "path" else "--path-column chooses another"
            lines.append(f"{where}: {part} is column {name!r} ({option})")
    return lines


def is_finding(column: str, reading: Reading) -> bool:
    """Whether a column of labels says 0 or 1 of the finding that `label_is` asks for."""
    return bool(reading.label_is and column) and folded(column) == folded(reading.label_is or "")


def _named(where: str, found: Sequence[str], part: str, named: str) -> str:
    alike = [name for name in found if name == named] or _alike(found, named)
    if len(alike) != 1:
        rule = f"{part}_column must be one of {', '.join(found)}"
        raise ValueError(f"{where}: {rule}, got {named!r}")
    return alike[0]


def _usual(where: str, found: Sequence[str], part: str, names: Iterable[str]) -> str:
    """Column of the first name that is one; users by two of the names may be two kinds of users."""
    taken: list[str] = []
    for name in names:
        alike = [each for each in found if each == name] or _alike(found, name)
        if len(alike) > 1 and not taken:
            raise ValueError(
                f"{part}_column must be one of {', '.join(alike)} in {where}, got none"
            )
        taken += [each for each in alike if each not in taken]
    plain = bool(taken) and folded(taken[0]) in PLAIN[part]
    if part == "user" and len(taken) > 1 and not plain:
        raise ValueError(
            f"user_column must be given for {where}, whose users may be in any of the columns "
            f"{', '.join(taken)}, got none"
        )
    return taken[0] if taken else ""


def _alike(found: Sequence[str], name: str) -> list[str]:
    return [each for each in found if folded(each) == folded(name)]
