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
    """Secure sums. 2: a first one, for 10 % of the budget, finds where the private
    rows lie (default: 2; 1 with --user-clip or --unit user)."""
    components: int | None = None
    """Most directions that are summed, which bounds what a user sends (default:
    by the noise, at most 256)."""
    rounds: int | None = None
    """Further sums of gradients where one owner holds all rows (default: 16 where
    noise is small)."""
    user_clip: tuple[float, ...] | None = None
    """Norm to which a user's vector is clipped, for --unit user or against liars;
    two numbers: of the first sum and of the second. `rehearse` proposes them."""
    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies that answers assume: equal, as in the private rows, or a
    JSON file of class and share (default: equal)."""


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
