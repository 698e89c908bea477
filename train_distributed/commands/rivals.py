"""`blind-averaging rival NAME`: a method that ours are compared with, a command for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from pretrain import check
from train_distributed.commands.choices import Noise
from train_distributed.commands.configuration import RunConfig
from train_distributed.commands.releasing import Simulating
from train_distributed.one_shot.registry import MANY_ROUNDS, NOT_PRIVATE, RIVALS, given
from train_distributed.research.options import OPTIONS

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.one_shot.model import Release
    from train_distributed.one_shot.request import ReleaseRequest

WORDS = RIVALS | MANY_ROUNDS | NOT_PRIVATE
EXAMPLE = "blind-averaging rival {} --embeddings mine --public public --epsilon {}"


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Settings of the method."""

    components: int | None = None
    """Most directions of the rows that are used (default: by a public rule)."""


@dataclass(frozen=True, kw_only=True)
class Rival(Directions, Simulating):
    """What the commands of all rivals have in common."""

    rival: ClassVar[str]  # its name

    @classmethod
    def groups(cls, typed: Sequence[str]) -> Mapping[str, tuple[type, ...]]:
        """Options as they are grouped in the help."""
        common = dict(super().groups(typed))
        output = common.pop("output")
        return {**common, "method": (Directions, OPTIONS[cls.rival]), "output": output}

    def _chosen(self) -> RunConfig:
        directions = {} if self.components is None else {"components": self.components}
        options = given(getattr(self, "options"))  # noqa: B009
        return RunConfig(self.rival, options | directions, self.privacy)

    def _noise(self) -> Noise | None:
        """Kind of noise; None: the only one that a method of many rounds has."""
        return self.noise if self.rival in MANY_ROUNDS else self.noise or "float"

    def _released(self, request: "ReleaseRequest") -> "Release":
        """By as many rounds as the method has; research is loaded here."""
        from train_distributed.research.baselines.learn import run_rival

        return run_rival(request)


@cache
def command_of(rival: str) -> type[Rival]:
    """Command of a rival: what all have, and options of its own.

    Raises ValueError for another name.
    """
    check.one_of(WORDS, rival=rival)
    kind: Any = OPTIONS[rival]
    epsilon = "inf" if rival in NOT_PRIVATE else "1"
    about = f"Compare: {WORDS[rival]}.\n\n{EXAMPLE.format(rival, epsilon)}"
    made = make_dataclass(
        f"Rival_{rival.replace('-', '_')}",
        [("options", kind, field(default_factory=kind))],
        bases=(Rival,),
        frozen=True,
        kw_only=True,
        namespace={"__doc__": about, "rival": rival, "command": f"rival {rival}"},
    )
    made.__module__ = __name__
    return made


def __getattr__(name: str) -> type[Rival]:
    """The command of a rival by its name, for the table of commands."""
    if name not in WORDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return command_of(name)
