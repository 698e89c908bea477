"""How a source of images is to be read: what a user says beside its place."""

from dataclasses import dataclass, field
from typing import Literal

from pretrain.intake.decode import MAX_PIXELS

Layout = Literal["auto", "class", "user-class", "flat"]


@dataclass(frozen=True, kw_only=True)
class ColumnNames:
    """Columns of a table by their names; None: the usual name, where there is such a column."""

    path: str | None = None
    """Column of file paths, or of the images themselves."""
    label: str | None = None
    """Column of classes."""
    user: str | None = None
    """Column that says whose image it is."""
    split: str | None = None
    """Column of train, test, val or evaluation."""

    def given(self) -> dict[str, str]:
        """Those that somebody named."""
        return {part: name for part, name in vars(self).items() if name is not None}


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Options of `pretrain.sources.open_images`; what each means stands there."""

    splits: tuple[str, ...] = ()
    download: bool = False
    resize: int | None = None
    classes: tuple[str, ...] = ()
    max_pixels: int = MAX_PIXELS
    layout: Layout = "auto"
    columns: ColumnNames = field(default_factory=ColumnNames)

    def __post_init__(self) -> None:
        for name in ("resize", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
