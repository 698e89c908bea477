"""Options of reading an image set. Read without torch or numpy, for the help of commands."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from pretrain import check

Layout = Literal["auto", "class", "user-class", "flat"]
MAX_PIXELS = 89_478_485  # limit of one picture, at which Pillow warns: a quarter of a GiB
USUAL = {"label": ("label",), "user": ("user",), "split": ("split",)}


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """Options of reading pictures in any format."""

    splits: tuple[str, ...] = ()
    """Splits to read, of train, test, val and evaluation (default: all that the data has)."""
    path_column: str | None = None
    """Column of files, or of the images themselves (default: `path` or `image`)."""
    label_column: str | None = None
    """Column of classes (default: `label`; without such a column the images are unlabelled)."""
    user_column: str | None = None
    """Column of the user who owns the image (default: `user`, if there is such a column)."""
    split_column: str | None = None
    """Column of train, test, val or evaluation (default: `split`; without such a column all images
    are train)."""
    layout: Layout = "auto"
    """Layout of a folder: class/image, user/class/image, or images without labels at any depth."""
    max_pixels: int = MAX_PIXELS
    """Largest number of pixels of a picture; a larger picture counts as unreadable."""
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

        for name in ("splits", "classes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check.at_least(1, max_pixels=self.max_pixels, **check.present(resize=self.resize))
        check.at_most(math.isqrt(MAX_PIXELS), **check.present(resize=self.resize))
        if unknown := set(self.splits) - SPLITS.keys():
            raise ValueError(f"splits must be of {list(SPLITS)}, got {sorted(unknown)}")

    @property
    def columns(self) -> dict[str, str]:
        """Names of the columns that were given, by part: path, label, user, split."""
        parts = {part: getattr(self, f"{part}_column") for part in ("path", *USUAL)}
        return check.present(**parts)

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
            name = self.columns.get(part)
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
