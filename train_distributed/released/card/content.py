"""What a card consists of, before it becomes HTML or Markdown: words, lists, tables, pictures.

All text is plain: what looks like markup in it (a class may be called "<b>") is shown as it is.
"""

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "words"


@dataclass(frozen=True)
class Warned:
    """A paragraph that must not be overlooked."""

    text: str
    kind: ClassVar[str] = "warned"


@dataclass(frozen=True)
class Items:
    """A list; order means nothing."""

    items: tuple[str, ...]
    kind: ClassVar[str] = "items"


@dataclass(frozen=True)
class Pairs:
    """Names with what is known of them."""

    pairs: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "pairs"


@dataclass(frozen=True)
class Table:
    """Rows below a head; the first column names its row, the others are numbers if `numeric`."""

    caption: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: bool = True
    kind: ClassVar[str] = "table"


@dataclass(frozen=True)
class Code:
    """What somebody may type."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Picture:
    """A PNG, with the words for whoever cannot see it."""

    png: bytes
    alt: str
    caption: str
    kind: ClassVar[str] = "picture"


Block = Words | Warned | Items | Pairs | Table | Code | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    blocks: tuple[Block, ...]

    @property
    def anchor(self) -> str:
        """What a link leads to."""
        return self.title.lower().replace(" ", "-")


@dataclass(frozen=True)
class Tile:
    """A number that everybody asks for first."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Card:
    """A released model on one page."""

    title: str
    summary: str
    suitable: bool
    reasons: tuple[str, ...]  # why not
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]

    @property
    def verdict(self) -> str:
        """What is said in large letters."""
        return "Suitable for release" if self.suitable else "NOT SUITABLE FOR RELEASE"


ROUNDING = 1e-12  # relative: what sums and roots of doubles may be off by


def rounded_up(value: float, digits: int = 3) -> str:
    """A number in so many digits, never smaller than it is but for what doubles round.

    Examples:
        >>> rounded_up(0.68415), rounded_up(2 + 1e-15), rounded_up(1.0000000001e-5)
        ('0.685', '2', '1.01e-05')
    """
    if not math.isfinite(value) or value <= 0:
        return f"{value:g}"
    shown = float(f"{value:.{digits}g}")
    if shown < value * (1 - ROUNDING):
        unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
        shown = float(f"{shown + unit:.{digits}g}")
    return f"{shown:.{digits}g}"


def percent(share: float) -> str:
    """A share with one decimal.

    Examples:
        >>> percent(0.7512)
        '75.1 %'
    """
    return f"{100 * share:.1f} %"


def chance(probability: float) -> str:
    """A small probability as a number and in words, rounded up.

    Examples:
        >>> chance(1e-5), chance(0.02)
        ('1e-05 (1 in 100,000)', '0.02 (1 in 50)')
    """
    return f"{probability:g} (1 in {math.floor(1 / probability * (1 + 1e-9)):,})"


def shortened(name: str, length: int = 40) -> str:
    """A name of at most so many letters."""
    return name if len(name) <= length else name[: length - 1].rstrip() + "…"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Examples:
        >>> counted(1, "user"), counted(12000, "class", "classes")
        ('1 user', '12,000 classes')
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"
