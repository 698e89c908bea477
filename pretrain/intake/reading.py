"""Options for reading pictures from any source, and one spelling for names that are one.

Two spellings of one word (`ü` as one character or as two, a blank at the end) are the same name.
Two classes whose names differ in case only are refused: nobody can tell whether they are one.
Read without torch or numpy, for the help of commands.
"""

import io
import math
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import PurePath
from typing import Any, Literal, NamedTuple, get_args

from pretrain import check

# Zero width and direction marks, which come along in copies
INVISIBLE = "\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
SPLIT_NAMES = ("train", "test", "evaluation", "val")  # what each is for: `pretrain.datasets.SPLITS`
SPLIT_WORDS = {  # in any case
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    "evaluation": "evaluation",
}
SYSTEM_FOLDERS = frozenset(  # casefolded; those with a leading dot need no entry
    {
        "__macosx", "network trash folder", "temporary items",  # macOS
        "$recycle.bin", "system volume information", "found.000",  # Windows
        "lost+found", "~snapshot",  # Linux, NetApp
        "@eadir", "@tmp", "#recycle", "#snapshot",  # Synology
        "@recycle", "@recently-snapshot",  # QNAP
        "__pycache__",
    }
)  # fmt: skip


class Skipped(NamedTuple):
    """File or folder of a source that is not read."""

    name: str  # path in the source; a folder's ends with /
    why: str  # the same words for all of one kind, such as "hidden"


def counted(skipped: Iterable[tuple[str, str]]) -> list[str]:
    """Lines that count skipped files and folders by suffix and reason, the most first.

    Examples:
        >>> counted([("a.txt", "no picture"), ("b.TXT", "no picture"), ("c/", "hidden")])
        ['2 .txt: no picture', '1 folder: hidden']
    """
    kinds: Counter[tuple[str, str]] = Counter()
    for name, why in skipped:
        kind = PurePath(name).suffix.lower() or "without suffix"
        kinds["folder" if name.endswith("/") else kind, why] += 1
    return [
        f"{number} {kind}{'s' * (kind == 'folder' and number > 1)}: {why}"
        for (kind, why), number in kinds.most_common()
    ]


def canonical_name(text: str) -> str:
    r"""The one spelling of a name: NFC, without white or invisible characters around it.

    Examples:
        >>> canonical_name("u\u0308ber \u00a0") == "\u00fcber"
        True
    """
    before, text = None, unicodedata.normalize("NFC", text)
    while text != before:
        before, text = text, text.strip().strip(INVISIBLE)
    return text


def split_named(word: str) -> str | None:
    """Split that a word names in any case: train, test, val or evaluation; None for other words.

    Examples:
        >>> [split_named(word) for word in ("Train", "valid", "dev", "cat")]
        ['train', 'val', 'val', None]
    """
    return SPLIT_WORDS.get(canonical_name(word).casefold())


def left_by_systems(name: str) -> bool:
    """Whether an operating system or a program leaves files and folders of this name."""
    return name.startswith(".") or name.casefold() in SYSTEM_FOLDERS


def case_twins(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Groups of names that differ only in case, in width, in kinds of blanks or invisibly.

    Examples:
        >>> case_twins(["Normal", "other", "normal"])
        [('Normal', 'normal')]
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        seen = "".join(sign for sign in name if sign not in INVISIBLE)
        folded = unicodedata.normalize("NFKC", seen).casefold()
        groups.setdefault(" ".join(folded.split()), []).append(name)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def class_spellings(
    where: str, found: Iterable[str], declared: Sequence[str] = (), *, ignore_case: bool = False
) -> dict[str, str]:
    """Class that each name means, where classes that differ only in case must be meant.

    They are two classes where `declared` has both. With `ignore_case` they are one, spelled as
    declared, else as the first in order.

    Args:
        where: file or folder, for errors.
        found: names of classes, as `canonical_name` gives them.
        declared: names that the options of the command declare; not those of the source itself.
        ignore_case: join them.

    Raises:
        ValueError: neither, or more than one declared name that another could mean.
    """
    found = set(found)
    meant = {name: name for name in found}
    for group in case_twins(found | set(declared)):
        known = [name for name in group if name in declared]
        others = [name for name in group if name not in known]
        if not others:
            continue
        if not ignore_case or len(known) > 1:
            remedy = "declare each with --class-names"
            remedy = remedy if len(known) > 1 else f"{remedy}, or join them with --ignore-case"
            got = " and ".join(map(repr, group))
            raise ValueError(
                f"{where}: classes must differ in more than case (or {remedy}), got {got}"
            )
        meant |= dict.fromkeys(found.intersection(group), (known or others)[0])
    return meant


def warn_of_case_twins(where: str, users: Iterable[str]) -> None:
    """Prints on stderr which users differ only in case: they may be one, or ids that do so."""
    if twins := case_twins(users):
        first = " and ".join(map(repr, twins[0]))
        more = f", and {len(twins) - 1} groups more" if len(twins) > 1 else ""
        print(
            f"warning: {where} has users whose names differ only in case: {first}{more}; each is "
            "a user of its own",
            file=sys.stderr,
        )


def print_all(notes: Iterable[str]) -> None:
    """Prints on stderr what was done with a source that was read."""
    for note in notes:
        print(note, file=sys.stderr)


class UnknownSplits(ValueError):
    """Splits that are none of train, test, val and evaluation, or not there."""


def refuse_unknown_splits(
    source: str, words: Iterable[str], first: Mapping[str, str] | None = None
) -> None:
    """Raises UnknownSplits for words that name no split; `first` says where each is."""
    unknown = sorted(word for word in words if split_named(word) is None)
    if unknown:
        shown = ", ".join(repr(word) if word else "none" for word in unknown)
        where = f"{', first' * (len(unknown) > 1)} in {first[unknown[0]]}" if first else ""
        raise UnknownSplits(
            f"{source}: split must be one of {', '.join(SPLIT_NAMES)} (or pass --splits with those "
            f"to read), got {shown}{where}"
        )


Unknown = Literal["negative", "positive", "ask"]
Layout = Literal["auto", "class", "user-class", "flat"]
MAX_PIXELS = 89_478_485  # limit of one picture, at which Pillow warns: a quarter of a GiB
PARTS = ("path", "label", "user", "split")  # of a table's row
_PART = re.compile(rf"(?:^|,)({'|'.join(PARTS)})=")


@dataclass(frozen=True, kw_only=True)
class UnreadableOption:
    """Option to leave out images that cannot be read."""

    skip_unreadable: bool = False
    """Leave out images that cannot be read, and name them in the output, instead of stopping at the
    first. It is an error if nothing is left of a user or class."""


@dataclass(frozen=True, kw_only=True)
class PictureOptions(UnreadableOption):
    """Options of reading pictures in any format."""

    splits: tuple[str, ...] = ()
    """Splits to read, of train, test, val and evaluation (default: all that the data has)."""
    columns: str | None = None
    """Columns of a table, such as path=file,label=finding,user=hospital,split=part (default: these
    four words or other usual names); `label=` alone: no labels."""
    label_is: str | None = None
    """Make two classes: images with this label, or this one of several findings, and the rest."""
    findings: bool = False
    """Images have several findings: a list, text such as a|b, columns of 0 and 1, an (N, K) array,
    or csv rows for each image and finding. --class-names declares them; without it those that
    occur are counted, which serves simulations only."""
    unknown: Unknown | None = None
    """Unknown findings (empty, or -1) become `negative` or `positive`, or stay unknown (`ask`), at
    more noise in a release (default: negative, and the output counts them)."""
    encoding: str | None = None
    """Encoding of a csv file, such as cp1252 (default: by its byte order mark, else UTF-8)."""
    layout: Layout = "auto"
    """Layout of a folder: class/image, user/class/image, or images without labels at any depth."""
    max_pixels: int = MAX_PIXELS
    """Largest number of pixels of a picture; a larger picture counts as unreadable."""
    bits: int | None = None
    """Bits in use, such as 12, of pictures that have 16 per channel and whose files do not say how
    many (default: those that a model learned with, else all 16; a set that then uses less than 1/16
    of its range is refused)."""
    ignore_case: bool = False
    """Take classes whose names differ only in case as one, spelled as --class-names does, else as
    the first (default: such classes are refused unless --class-names declares each)."""
    resize: int | None = None
    """Scale the shorter side of every picture to this many pixels and cut out the centre square."""
    download: bool = False
    """Let torchvision download a missing data set."""

    def reading(self, classes: tuple[str, ...] = ()) -> "Reading":
        """Options of `open_images`; raises ValueError for a value out of range."""
        names = [each.name for each in fields(PictureOptions)]
        given: dict[str, Any] = {name: getattr(self, name) for name in names}
        return Reading(**given, classes=classes)


@dataclass(frozen=True, kw_only=True)
class Reading(PictureOptions):
    """Options of `pretrain.sources.open_images`.

    Raises:
        ValueError: at construction, for an unknown split or a number out of range.
    """

    classes: tuple[str, ...] = ()  # declared names; needed where the source has none

    def __post_init__(self) -> None:
        splits = tuple(split_named(word) or word for word in self.splits)
        object.__setattr__(self, "splits", splits)
        object.__setattr__(self, "classes", tuple(map(canonical_name, self.classes)))
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes must be distinct, got {self.classes}")
        if self.label_is is not None:
            object.__setattr__(self, "label_is", canonical_name(self.label_is))
            if not self.label_is:
                raise ValueError("label_is must be the name of a label, got an empty one")
        if self.findings:
            check.not_set("with findings", label_is=self.label_is)
            check.one_of(get_args(Unknown), **check.drop_none(unknown=self.unknown))
        else:
            check.not_set("without findings", unknown=self.unknown)
        _ = self.named_columns
        if self.encoding is not None:
            _check_encoding(self.encoding)
        check.within("[8, 16]", **check.drop_none(bits=self.bits))
        check.at_least(1, max_pixels=self.max_pixels, **check.drop_none(resize=self.resize))
        check.at_most(math.isqrt(MAX_PIXELS), **check.drop_none(resize=self.resize))
        if unknown := set(self.splits) - set(SPLIT_NAMES):
            raise ValueError(f"splits must be of {list(SPLIT_NAMES)}, got {sorted(unknown)}")

    @cached_property
    def named_columns(self) -> dict[str, str]:
        """Names of the columns that were given, by part: path, label, user, split; "" is none."""
        return named_columns(self.columns)


def named_columns(columns: str | None) -> dict[str, str]:
    """Names of columns by what they hold, of text as `PictureOptions.columns` has it.

    A name may hold commas and equals signs. Raises ValueError for other text.

    Examples:
        >>> named_columns("path=file,label=finding, main,user=")
        {'path': 'file', 'label': 'finding, main', 'user': ''}
    """
    start, *words = _PART.split(columns or "")
    names = dict(zip(words[::2], words[1::2], strict=True))
    if start or 2 * len(names) < len(words):
        raise ValueError(
            f"columns must be such as path=file,label=finding, each of {', '.join(PARTS)} once, "
            f"got {columns!r}"
        )
    return names


def without_column(columns: str | None, part: str) -> str:
    """The columns, with none for a part that they do not name."""
    named = part in named_columns(columns)
    return ",".join(filter(None, [columns, "" if named else f"{part}="]))


def _check_encoding(name: str) -> None:
    try:
        io.TextIOWrapper(io.BytesIO(), encoding=name)
    except LookupError as error:
        raise ValueError(f"encoding must be one that Python knows, got {name!r}") from error
