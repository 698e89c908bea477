"""Options of reading an image set."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pretrain import check
from pretrain.datasets import SPLITS
from pretrain.intake.decode import MAX_PIXELS

Layout = Literal["auto", "class", "user-class", "flat"]
USUAL = {"label": ("label",), "user": ("user",), "split": ("split",)}


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Columns of a table by their names; None: the usual name, where there is such a column."""

    path: str | None = None
    """Column of file paths, or of the images themselves."""
    label: str | None = None
    """Column of classes."""
    user: str | None = None
    """Column of users: whose image it is."""
    split: str | None = None
    """Column of train, test, val or evaluation."""

    def given(self) -> dict[str, str]:
        """Columns that have a name here."""
        return {part: name for part, name in vars(self).items() if name is not None}

    def choose(self, where: str, found: Sequence[str], **usual: Sequence[str]) -> dict[str, str]:
        """Column of every part: the named one, else the first usual one; "" if there is none.

        Args:
            where: the file, for errors.
            found: columns of its table.
            **usual: usual names of "path", and of other parts that have more than one.

        Raises:
            ValueError: a named column is missing, or no column holds the images.
        """
        chosen = {}
        for part, names in (USUAL | usual).items():
            name = getattr(self, part)
            if name is not None and name not in found:
                rule = f"{part}_column must be one of {', '.join(found)}"
                raise ValueError(f"{where}: {rule}, got {name!r}")
            chosen[part] = name or next((name for name in names if name in found), "")
        if not chosen["path"]:
            raise ValueError(
                f"path_column must be given for {where}, which has no {usual['path'][0]!r}, "
                f"got columns {', '.join(found)}"
            )
        return chosen


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of `pretrain.sources.open_images`.

    Raises:
        ValueError: at construction, for an unknown split or a number out of range.
    """

    splits: tuple[
        str, ...
    ] = ()  # of train, test, val, evaluation, in this order; (): all there are
    download: bool = False  # let torchvision fetch a missing set
    resize: int | None = None  # shorter side, then cropped to a square; None: sizes must be equal
    classes: tuple[str, ...] = ()  # declared names; needed where the source has none
    max_pixels: int = MAX_PIXELS  # larger pictures are refused as unreadable
    layout: Layout = "auto"  # of a folder; see `pretrain.intake.folder`
    columns: ColumnNames = field(default_factory=ColumnNames)

    def __post_init__(self) -> None:
        for name in ("splits", "classes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check.at_least(1, max_pixels=self.max_pixels, **check.present(resize=self.resize))
        check.at_most(math.isqrt(MAX_PIXELS), **check.present(resize=self.resize))
        if unknown := set(self.splits) - SPLITS.keys():
            raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")
