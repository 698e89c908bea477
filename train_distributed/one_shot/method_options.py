"""Options of the methods, for the command line; those of a rival are beside it."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal


def given(options: Any) -> dict[str, Any]:
    """Options of a dataclass that were set; those that are None are left to a rule."""
    return {name: value for name, value in asdict(options).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SumOptions:
    """How many sums are opened, and of what (default: by a public rule)."""

    sums: Literal[1, 2] | None = None
    """2: a first sum, for 10 % of the budget, finds where
    the private rows lie (default; 1 for --unit user)."""
    components: int | None = None
    """Most directions of the rows that are summed: fewer
    make messages shorter (default: by the noise)."""
    rounds: int | None = None
    """Further sums where one owner has all rows
    (default: 16 where noise is small)."""
    user_clip: tuple[float, ...] | None = None
    """Norm to which a user's vector is clipped, for --unit
    user (two: of the first sum and of the other one)."""
    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies that answers assume: equal
    (default), private ones, a JSON file of shares."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Settings of the layer, called a head, that each user trains."""

    l2_reg: float | None = None
    """L2 regularisation Λ (default: by a public rule)."""
    radius: float | None = None
    """Radius R of the ball that head weights are projected to."""
    solver: Literal["exact", "sgd"] | None = None
    """Certified minimiser (default), or projected SGD."""
    epochs: int | None = None
    """Epochs of SGD."""
    batch_size: int | None = None
    """Batch size of SGD."""
    bound: Literal["tight", "paper"] | None = None
    """Bound on the sensitivity of a head; `paper` needs --radius."""


@dataclass(frozen=True, kw_only=True)
class MethodOptions(SumOptions, HeadOptions):
    """Settings of a method; each is left to the method's default unless given."""

    def given(self) -> dict[str, Any]:
        """Those that were set."""
        return given(self)


@dataclass(frozen=True, kw_only=True)
class SettledOptions(MethodOptions):
    """Settings with those that a public rule fills in and nobody types."""

    class_noise: float | None = None
    """Noise in a class mean, for which directions and their lengths are chosen; see `defaults`."""
