"""Options of reading an image set. Read without torch or numpy, for the help of commands."""

import io
import math
import re
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

from pretrain import check
from pretrain.intake.names import canonical_name, split_named

Layout = Literal["auto", "class", "user-class", "flat"]
MAX_PIXELS = 89_478_485  # limit of one picture, at which Pillow warns: a quarter of a GiB
PARTS = ("path", "label", "user", "split")  # of a table's row
_PART = re.compile(rf"(?:^|,)({'|'.join(PARTS)})=")


@dataclass(frozen=True, kw_only=True)
class UnreadableOption:
    """Option to leave out images that cannot be read."""

    skip_unreadable: bool = False
    """Leave out images that cannot be read, and name them in the output, instead of stopping at the
    first. A user or class of whom nothing is left is an error."""


@dataclass(frozen=True, kw_only=True)
class PictureOptions(UnreadableOption):
    """Options of reading pictures in any format."""

    splits: tuple[str, ...] = ()
    """Splits to read, of train, test, val and evaluation (default: all that the data has)."""
    columns: str | None = None
    """Columns of a table, such as path=file,label=finding,user=hospital,split=part (default: these
    four words or other usual names); `label=` alone: no labels."""
    label_is: str | None = None
    """Make two classes: images with this label, or finding, and the rest. Images with several
    findings need it; their findings may be a list, text such as a|b, or columns of 0 and 1."""
    encoding: str | None = None
    """Encoding of a csv file, such as cp1252 (default: by its byte order mark, else UTF-8)."""
    layout: Layout = "auto"
    """Layout of a folder: class/image, user/class/image, or images without labels at any depth."""
    max_pixels: int = MAX_PIXELS
    """Largest number of pixels of a picture; a larger picture counts as unreadable."""
    bits: int | None = None
    """Bits in use, such as 12, of pictures that have 16 per channel and whose files do not say how
    many (default: all 16; a set that then uses less than 1/16 of its range is refused)."""
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
        from pretrain.datasets import SPLITS

        splits = tuple(split_named(word) or word for word in self.splits)
        object.__setattr__(self, "splits", splits)
        object.__setattr__(self, "classes", tuple(map(canonical_name, self.classes)))
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes must be distinct, got {self.classes}")
        if self.label_is is not None:
            object.__setattr__(self, "label_is", canonical_name(self.label_is))
            if not self.label_is:
                raise ValueError("label_is must be the name of a label, got an empty one")
        _ = self.named_columns
        if self.encoding is not None:
            _check_encoding(self.encoding)
        check.within("[8, 16]", **check.present(bits=self.bits))
        check.at_least(1, max_pixels=self.max_pixels, **check.present(resize=self.resize))
        check.at_most(math.isqrt(MAX_PIXELS), **check.present(resize=self.resize))
        if unknown := set(self.splits) - SPLITS.keys():
            raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")

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
