"""Options that state public knowledge of the private classes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

NONE = Path("none")


@dataclass(frozen=True)
class Knowledge:
    """Public knowledge of the private classes; a model of few users starts from it."""

    names: tuple[str, ...] | None = None
    """Words for the classes, in the order of their numbers, for --text-encoder (default: as the
    private set declares)."""
    text_encoder: str | None = None
    """Guess class means from names, by those of public classes: `package` (extra `names`), or
    a directory that transformers can load. The ImageNet classes that a timm encoder was trained
    with join the public ones (default: names are not used)."""
    examples: Path | None = None
    """Public embedding set with labels named as the private classes (default: the public set where
    its class names contain the private ones; none: no examples)."""

    def given(self) -> dict[str, Any]:
        """Options that were set, by name; the others are None."""
        return dict(vars(self))

    @property
    def guesses(self) -> bool:
        """Whether something is known of the classes beside public ones of the same names."""
        return bool(self.text_encoder or self.examples not in (None, NONE))
