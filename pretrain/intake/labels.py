"""Labels of pictures: one class each, or several findings, or one of them against the rest.

A picture with several findings has no class: each combination of them would become one. Lists, a
number for each finding and cells such as `a|b` are therefore refused, unless `findings` asks for a
column of each, or `label_is` names one; the classes are then pictures without it and with it.
"""

import math
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from pretrain.datasets import MOST_CLASSES, UNLABELLED, ImageSet
from pretrain.intake.reading import Reading, canonical_name, class_spellings, split_named

INTEGER = re.compile(r"-?(0|[1-9]\d*)")
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d{1,3})?", re.ASCII | re.IGNORECASE)
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
        >>> number_twins(["0", "1", "0.0"]), number_twins(["1000", "1E+3"])
        (('0', '0.0'), ('1000', '1E+3'))
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
                declarable = what.endswith("label") and cell.casefold() != "nan"
                remedy = " (or be declared with --class-names)" * declarable
                rule = f"must be a name{remedy}, or empty in every row"
                raise ValueError(f"{what} {rule}, got {cell!r} in {self.first(cell)}")


UNKNOWN = frozenset({"", "-1", "-1.0"}) | MISSING  # of a finding: not said, or uncertain
NOTHING = frozenset({"no finding", "no findings", "none", "nothing"})  # casefolded, without _ and -
MAPPED = {"negative": 0, "positive": 1, "ask": UNLABELLED}
FLAGS = {"0": False, "1": True, "0.0": False, "1.0": True}
FLAGS |= {"false": False, "true": True, "no": False, "yes": True}
SEPARATORS = "|;"  # of findings, whatever they are called
OTHER_SEPARATORS = ",+/&"  # where each part is a label of another picture
FRACTION = re.compile(r"-?\d+\.\d+|-\d+")  # no number of a class
QUOTED = re.compile(r"""'([^']*)'|"([^"]*)"|([^\s,'"]+)""")  # in a list that was written as text
NO_LABEL = ("", "-1")  # the library `datasets` stores an unknown class as -1
SHOWN = 20

Say = Callable[[str], None]  # takes a line for the output
Held = Mapping[Any, frozenset[str]]  # findings of every distinct cell
Numbered = tuple[np.ndarray, tuple[str, ...], bool]  # labels, classes, whether they were counted


def unlabelled_where_findings(numbers: np.ndarray) -> np.ndarray:
    """(n,) labels: -1 where `numbers` are (n, K) findings."""
    return numbers if numbers.ndim == 1 else np.full(len(numbers), UNLABELLED)


def is_nothing(name: str) -> bool:
    """Whether a word says that a picture has no finding.

    Examples:
        >>> is_nothing("No_Finding"), is_nothing("normal")
        (True, False)
    """
    return re.sub(r"[\s_-]+", " ", name).casefold() in NOTHING


def pair_of(finding: str) -> tuple[str, str]:
    """Names of the two classes that one finding makes."""
    return f"not {finding}", finding


def several_findings(where: str, got: str, names: Sequence[str]) -> ValueError:
    """Refusal of pictures with several findings, for a caller to raise."""
    such = f", such as {names[0]!r}," if names else ""
    return ValueError(
        f"{where} must be one class a picture (or pass --findings for all, or --label-is NAME"
        f"{such} for one finding against the rest), got several findings a picture: {got}"
    )


def finding_among(
    names: Sequence[str], where: str, reading: Reading, *, numbered: bool = False
) -> str:
    """The finding of `names` that `label_is` asks for, by name or where `numbered` by number.

    Raises:
        ValueError: it is none of them.
    """
    asked = reading.label_is or ""
    alike = [name for name in names if reading.ignore_case and name.casefold() == asked.casefold()]
    if asked in names or alike:
        return asked if asked in names else alike[0]
    if numbered and asked.isdecimal() and int(asked) < len(names):
        return names[int(asked)]
    remedy = "" if numbered else " (or be declared with --class-names)"
    raise ValueError(f"label_is must be one of {_shown(names)}{remedy} for {where}, got {asked!r}")


def is_against_rest(images: ImageSet) -> bool:
    """Whether the classes are one finding and the rest."""
    return len(images.class_names) == 2 and images.class_names == pair_of(images.class_names[1])


def against_rest(images: ImageSet, reading: Reading) -> ImageSet:
    """Two classes: the one that `label_is` asks for, and all others.

    Raises:
        ValueError: the set has no labels, or not this class.
    """
    if not images.labelled:
        raise ValueError(f"label_is must be left out for {images.name}, which has no labels")
    finding = finding_among(images.class_names, images.name, reading)
    label = images.class_names.index(finding)
    labels = np.where(images.labels == UNLABELLED, UNLABELLED, images.labels == label)
    names = pair_of(finding)
    return replace(images, labels=labels.astype(np.int64), class_names=names, inferred=False)


def as_findings(images: ImageSet) -> ImageSet:
    """Every class as a finding, one a picture; raises ValueError for a set without labels."""
    if not images.labelled:
        raise ValueError(f"findings must be given, got {images.name} without labels")
    findings = np.arange(len(images.class_names)) == images.labels[:, None]
    labels = unlabelled_where_findings(findings)
    return replace(images, labels=labels, findings=findings.astype(np.int8))


def unlabelled_rows(
    labels: Cells, splits: Cells, source: str, known: Sequence[str], say: Say
) -> np.ndarray:
    """(n,) bool: rows of held-out splits without any label, where others have some.

    A model is not tested on them, so that they are left out.

    Args:
        labels: of all rows.
        splits: of all rows, as the source spells them; "" is train.
        source: file or directory.
        known: classes that are declared.
        say: receives which splits are left out.
    """
    none = labels.numbers({cell: _is_none(cell, known) for cell in labels.distinct}) == 1
    left_out = np.zeros(len(labels), bool)
    meant = [split_named(str(word)) or "train" for word in splits.distinct]
    for split in dict.fromkeys(meant):
        part = np.array([each == split for each in meant])[splits.codes]
        if split != "train" and none[part].all() and not none.all():
            say(
                f"{source}: {split} has no labels: {part.sum()} left out (--splits {split} reads "
                "it, for prediction)"
            )
            left_out |= part
    return left_out


def numbered(
    cells: Cells,
    source: str,
    held: tuple[str, ...],
    reading: Reading,
    say: Say,
    *,
    is_finding: bool = False,
) -> Numbered:
    """Numbers the classes of all rows.

    Args:
        cells: labels.
        source: file or directory, for errors.
        held: classes that the source declares.
        reading: declared classes, and the finding that `label_is` asks for.
        say: receives what counting the classes has made.
        is_finding: the cells say whether a picture has that finding.

    Returns:
        (n,) int64 labels, -1 for all where none has one, or (n, K) int8 findings where they are
        asked for; names of the classes or findings; and whether they were counted from the labels.

    Raises:
        ValueError: several findings a picture, or a label that is no class, with its row.
    """
    what, known, asked = f"{source}: label", reading.classes or held, reading.label_is
    if reading.findings:
        return _all_findings(cells, source, known, reading, say)
    if all(_is_none(cell, known) for cell in cells.distinct):
        return np.full(len(cells), UNLABELLED), known, False
    if asked is not None and is_finding:
        flags = {cell: _flag(cell, what, cells) for cell in cells.distinct}
        return cells.numbers(flags), pair_of(asked), False
    cells.refuse_missing(what, known)
    if "-1" in cells.distinct and "-1" not in known:
        rule = "must be given in every row or in none, where -1 is none"
        got = f"-1 in {cells.first('-1')}: leave the row out, or declare it with --class-names"
        raise ValueError(f"{what} {rule}, got {got}")
    findings = _findings(cells, what, known, alone=asked is None)
    if findings is not None:
        several, names = findings
        if asked is None:
            cell = max(several, key=lambda each: len(several[each]))
            remedy = " (a class? declare all with --class-names)" * isinstance(cell, str)
            raise several_findings(what, f"{cell} in {cells.first(cell)}{remedy}", names)
        return _one_of(several, (known, names), cells, what, reading)
    single = {cell: cell if isinstance(cell, str) else cell.words[0] for cell in cells.distinct}
    meant = class_spellings(what, single.values(), reading.classes, ignore_case=reading.ignore_case)
    words = {cell: meant[word] for cell, word in single.items()}
    number, classes, counted = _classes(words, what, known, cells, say)
    return cells.numbers({cell: number[word] for cell, word in words.items()}), classes, counted


def _is_none(cell: Cell, known: Sequence[str]) -> bool:
    if isinstance(cell, Several):
        return bool(cell.words) and set(cell.words) <= UNKNOWN
    return cell in NO_LABEL and cell not in known


def _all_findings(
    cells: Cells, source: str, known: Sequence[str], reading: Reading, say: Say
) -> Numbered:
    """(n, K) int8 findings, their names, and whether those were counted; a row may have none."""
    what = f"{source}: findings"
    words = [cell for cell in cells.distinct if cell not in UNKNOWN]
    if all(isinstance(cell, str) and cell[:1] + cell[-1:] == "[]" for cell in words):
        lists = [
            QUOTED.findall(str(cell)[1:-1]) if cell in words else None for cell in cells.distinct
        ]
        read = [as_cell(each and list(map("".join, each))) for each in lists]
        read = [Several(()) if each == [] else cell for each, cell in zip(lists, read, strict=True)]
        cells = replace(cells, distinct=read)
    blank = {c: isinstance(c, str) and c.casefold() in UNKNOWN - {*known} for c in cells.distinct}
    said = cells.taken(cells.numbers(blank) == 0)
    if not len(said):
        raise ValueError(f"{what} must be given, got none in {len(cells)} rows")
    found = _findings(said, what, known, alone=False, unknown=UNKNOWN)
    if found is None:  # one in every row
        held = {c: frozenset([c] if isinstance(c, str) else c.words) for c in said.distinct}
        found = held, sorted_words({name for each in held.values() for name in each})
    several, names = found
    meant = class_spellings(what, names, reading.classes, ignore_case=reading.ignore_case)
    without = {name for name in names if is_nothing(name) and meant[name] not in known}
    order = tuple(known) or tuple(dict.fromkeys(meant[n] for n in names if n not in without))
    if len(order) < 2:
        raise ValueError(f"{what} must be two or more (or pass --label-is NAME), got {order}")
    place = {name: number for number, name in enumerate(order)}
    values = {cell: np.full(len(order), UNLABELLED, np.int8) for cell in blank}
    for cell, present in several.items():
        pairs = () if isinstance(cell, str) else zip(cell.fields or names, cell.words, strict=False)
        looked_at = {*names} if isinstance(cell, str) or not cell.fields else {*cell.fields}
        not_said = {name for name, word in pairs if word.casefold() in UNKNOWN}
        if odd := sorted({meant[n] for n in looked_at & present} - {*order} - without):
            raise ValueError(f"{what} must be of {order}, got {odd[0]!r} in {cells.first(cell)}")
        if present & without and present - without:
            got = f"{cell} in {cells.first(cell)}"
            raise ValueError(f"{what} must be none or some in every row, got {got}")
        if not (isinstance(cell, Several) and cell.fields):
            values[cell][:] = 0
        for name in {*looked_at} - without:
            if meant[name] in place:
                flag = UNLABELLED if name in not_said else int(name in present)
                values[cell][place[meant[name]]] = flag
    table = np.stack([values[cell] for cell in cells.distinct])[cells.codes]
    if without:
        say(f"{what}: {', '.join(map(repr, sorted(without)))} is no finding, but none of them")
    if unknown := [(n, int(c)) for n, c in zip(order, (table < 0).sum(0), strict=True) if c]:
        taken = reading.unknown or "negative"
        words = "kept" if taken == "ask" else f"taken as {taken}"
        shown = ", ".join(f"{name} {count}" for name, count in unknown[:SHOWN])
        shown += ", ..." * (len(unknown) > SHOWN)
        say(f"{what} unknown: {shown}, of {len(cells)} rows each, {words} (--unknown says how)")
        table[table < 0] = MAPPED[taken]
    return table, order, not known


def _classes(
    words: Mapping[Cell, str], what: str, known: tuple[str, ...], cells: Cells, say: Say
) -> tuple[dict[str, int], tuple[str, ...], bool]:
    """Number of every word, names of the classes, and whether they were counted."""
    found = sorted_words(set(words.values()))
    first = {word: cells.first(cell) for cell, word in words.items()}
    if set(found) <= set(known):
        return {word: known.index(word) for word in found}, known, False
    if twins := number_twins(found):
        one, two = twins
        rule = "must write a number in one way"
        raise ValueError(f"{what} {rule}, got {one!r} in {first[one]} and {two!r} in {first[two]}")
    elsewhere = any(INTEGER.fullmatch(name) and name != str(k) for k, name in enumerate(known))
    if elsewhere or not all(map(INTEGER.fullmatch, found)):  # a number would be name and place
        if known:
            word = next(word for word in found if word not in known)
            raise ValueError(f"{what} must be one of {known}, got {word!r} in {first[word]}")
        return {word: number for number, word in enumerate(found)}, tuple(found), True
    limit = len(known) or MOST_CLASSES
    for word in (found[0], found[-1]):
        if not 0 <= int(word) < limit:
            raise ValueError(f"{what} must be >= 0 and < {limit}, got {word} in {first[word]}")
    counted = tuple(map(str, range(int(found[-1]) + 1)))
    if not known and (unused := [name for name in counted if name not in found]):
        say(
            f"{what} has numbers from 0: classes {_shown(unused)} have no rows (--class-names "
            "declares those that there are)"
        )
    return {word: int(word) for word in found}, known or counted, not known


def _one_of(
    several: Held,
    names: tuple[Sequence[str], Sequence[str]],
    cells: Cells,
    what: str,
    reading: Reading,
) -> Numbered:
    """One finding of those that are declared, else found, against the rest."""
    known, found = names
    meant = class_spellings(what, found, reading.classes, ignore_case=reading.ignore_case)
    for cell, held in several.items():
        if known and (odd := sorted({meant[each] for each in held} - set(known))):
            raise ValueError(f"{what} must be of {known}, got {odd[0]!r} in {cells.first(cell)}")
    spelled = list(dict.fromkeys(meant[name] for name in found))
    finding = finding_among(known or spelled, what, reading, numbered=bool(known))
    has = {cell: finding in {meant[each] for each in held} for cell, held in several.items()}
    return cells.numbers(has), pair_of(finding), False


def _findings(
    cells: Cells,
    what: str,
    known: Sequence[str],
    *,
    alone: bool,
    unknown: frozenset[str] = frozenset(),
) -> tuple[Held, list[str]] | None:
    """Findings of every cell, and names of all findings; None where each has one label.

    Words of `unknown` may take the place of 0 or 1.
    """
    lists = [cell for cell in cells.distinct if isinstance(cell, Several)]
    if not lists:
        return _written(cells, what, known, alone=alone)
    if all(len(cell.words) == 1 and not cell.fields for cell in lists):
        return None
    widths = {len(cell.words) for cell in lists}
    allowed = unknown.union(FLAGS)
    flags = len(lists) == len(cells.distinct) and len(widths) == 1 and widths != {1}
    if any(cell.fields for cell in lists):
        held: Held = {cell: _of_fields(cell, what, cells, unknown) for cell in cells.distinct}
        names: Iterable[str] = (name for cell in lists for name in cell.fields)
    elif flags and {word.casefold() for cell in lists for word in cell.words} <= allowed:
        width = widths.pop()
        names = known or list(map(str, range(width)))
        if len(known) not in (0, width):
            rule = f"must have a number for each of {len(known)} classes"
            raise ValueError(f"{what} {rule}, got {width} in {cells.first(lists[0])}")
        held = {cell: _set_flags(names, cell.words) for cell in lists}
    else:
        held = {c: frozenset([c] if isinstance(c, str) else c.words) for c in cells.distinct}
        for cell, each in held.items():
            twice = isinstance(cell, Several) and len(each) < len(cell.words)
            if "" in each or twice or any(map(FRACTION.fullmatch, each)):
                rule = "must name every finding once, or have 0 or 1 for each in every row"
                raise ValueError(f"{what} {rule}, got {cell} in {cells.first(cell)}")
        names = sorted_words({name for each in held.values() for name in each})
    return held, list(dict.fromkeys(names))


def _written(
    cells: Cells, what: str, known: Sequence[str], *, alone: bool
) -> tuple[Held, list[str]] | None:
    """Findings of cells of text: `a|b`, `a; b`, lists in brackets; at other signs, known parts.

    A label that is the only one, `alone`, is a name whatever signs it has.
    """
    words = [cell for cell in cells.distinct if isinstance(cell, str)]
    if (alone and len(words) < 2) or set(words) <= set(known):
        return None
    if all(word[:1] + word[-1:] == "{}" for word in words):
        got = f"{words[0]} in {cells.first(words[0])}"
        raise ValueError(f"{what} must be a name (or a column for each finding), got {got}")
    if all(word[:1] + word[-1:] == "[]" for word in words):
        held = {w: ["".join(each) for each in QUOTED.findall(w[1:-1])] for w in words}
    else:
        used = [sign for sign in SEPARATORS if any(sign in word for word in words)]
        used += [
            sign
            for sign in OTHER_SEPARATORS
            if any(_joins(w, sign, {*words, *known}) for w in words)
        ]
        if not used:
            return None
        pattern = f"[{re.escape(''.join(used))}]"
        held = {word: [part.strip() for part in re.split(pattern, word)] for word in words}
    several: Held = {word: frozenset(filter(None, each)) for word, each in held.items()}
    return several, sorted_words({name for each in several.values() for name in each})


def _joins(word: str, sign: str, words: Collection[str]) -> bool:
    parts = [part.strip() for part in word.split(sign)]
    return len(parts) > 1 and set(parts) <= set(words)


def _of_fields(
    cell: Cell, what: str, cells: Cells, unknown: frozenset[str] = frozenset()
) -> frozenset[str]:
    if isinstance(cell, str) or not cell.fields:
        raise ValueError(f"{what} must have fields in every row, got {cell} in {cells.first(cell)}")
    if odd := [word for word in cell.words if word.casefold() not in unknown.union(FLAGS)]:
        rule = "must have 0 or 1 in every field"
        raise ValueError(f"{what} {rule}, got {odd[0] or 'none'} in {cells.first(cell)}")
    return _set_flags(cell.fields, cell.words)


def _set_flags(names: Iterable[str], words: Iterable[str]) -> frozenset[str]:
    pairs = zip(names, words, strict=True)
    return frozenset(name for name, word in pairs if FLAGS.get(word.casefold()))


def _flag(cell: Cell, what: str, cells: Cells) -> bool:
    if not isinstance(cell, str) or cell.casefold() not in FLAGS:
        got = cell if cell != "" else "none"
        raise ValueError(f"{what} must be 0 or 1 in every row, got {got} in {cells.first(cell)}")
    return FLAGS[cell.casefold()]


def _shown(names: Sequence[str]) -> str:
    return (
        ", ".join(map(str, names[:SHOWN])) + ", ..." * (len(names) > SHOWN) or "those found, none"
    )


def user_numbers(cells: Cells, source: str, say: Say) -> tuple[np.ndarray | None, tuple[str, ...]]:
    """(n,) int64 users, numbered in the order of their names, and the names; None without users.

    `say` receives users whose names are one number.

    Raises:
        ValueError: some rows have none, or one has several.
    """
    what = f"{source}: user"
    if cells.distinct == [""]:
        return None, ()
    cells.refuse_missing(what)
    words = _one_user_each(cells, what)
    names = sorted_words(words)
    if twins := number_twins(names):
        one, two = map(repr, twins)
        say(f"warning: {source} has users {one} and {two}, each its own")
    numbers = cells.numbers({name: number for number, name in enumerate(names)})
    return numbers, tuple(names)


def _one_user_each(cells: Cells, what: str) -> list[str]:
    """Names of the users; ValueError for a cell that holds several."""
    words = [cell for cell in cells.distinct if isinstance(cell, str)]
    for cell in cells.distinct:
        parts = cell.words if isinstance(cell, Several) else ()
        for sign in SEPARATORS if isinstance(cell, str) else "":
            named = [canonical_name(part) for part in str(cell).split(sign)]
            parts = named if len(named) > 1 and set(named) & set(words) else parts
        if isinstance(cell, Several) or parts:
            rule = "must be one in every row, whose picture it is"
            raise ValueError(f"{what} {rule}, got {cell} in {cells.first(cell)}")
    return words
