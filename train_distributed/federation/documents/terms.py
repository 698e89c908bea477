"""A federation's `task`: what every user submits and what is promised, read without trust."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, Union, get_args, get_type_hints

import msgspec
from msgspec import Meta

from pretrain import check
from train_distributed.federation.documents.document import (
    LARGE,
    SHOWN,
    Document,
    Key,
    Rows,
    UserNumber,
    converted,
    load_file,
    read_file,
)
from train_distributed.one_shot.registry import METHODS, SettledOptions
from train_distributed.privacy.promise import NoiseBy, Privacy, Unit
from train_distributed.released import MOST_BINS

if TYPE_CHECKING:
    from embed import PublicTransform

MOST_CLASSES, MOST_STEPS = 2**20, 2**31
LONGEST_NAME = 100
KIND = "evaluation"  # of a task; a model's states none
MODEL, TRANSFORM = "model.safetensors", "transform.safetensors"


class Promise(Document, frozen=True, kw_only=True):
    """Agreement common to both kinds of tasks: classes, users' rows, promise of one session.

    Raises:
        ValueError: fields that do not fit each other.
    """

    num_classes: Annotated[int, Meta(ge=2, le=MOST_CLASSES)]  # K
    class_names: tuple[Annotated[str, Meta(min_length=1, max_length=LONGEST_NAME)], ...] = ()
    sizes: dict[UserNumber, Rows]  # user -> rows; empty where a roll states them
    epsilon: float
    delta: float
    honest_fraction: float | None = None
    noise_by: NoiseBy = "users"
    unit: Unit
    group_size: Rows

    def __post_init__(self) -> None:
        self.privacy.validate()
        if (self.noise_by == "users") != (self.honest_fraction is not None):
            raise ValueError("honest_fraction must be given where users add the noise, only there")
        names = self.class_names
        if names and (len({*names}) != self.num_classes or not "".join(names).isprintable()):
            rule = f"class_names must be {self.num_classes} distinct names in print"
            raise ValueError(f"{rule}, got {str(names)[:SHOWN]}")

    @property
    def privacy(self) -> Privacy:
        """The promise of one session."""
        return Privacy(**{name: getattr(self, name) for name in Privacy.__dataclass_fields__})

    @classmethod
    def read(cls, task: dict[str, Any], users: set[int], path: Path) -> Self:
        """Reads a federation's task.

        Args:
            task: of a federation.
            users: whose sizes it must hold; none where they are on a roll.
            path: of the federation, for errors.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        found = converted(task, cls, path, "task.")
        if found.sizes.keys() != users:
            odd = sorted(found.sizes.keys() ^ users)[:10]
            raise ValueError(
                f"{path}: task.sizes must be of the federation's users, got others: {odd}"
            )
        return found


class Terms(Promise, frozen=True, kw_only=True):
    """Agreed terms of a model; `ModelTask.of` checks whether it can be computed."""

    method: str  # one of the registry's METHODS
    options: dict[str, Any]  # those of `SettledOptions` that were set
    transform: Key  # SHA-256 of the public transform's file

    def __post_init__(self) -> None:
        check.one_of(METHODS, method=self.method)
        super().__post_init__()

    @classmethod
    def read(cls, task: dict[str, Any], users: set[int], path: Path) -> Self:
        """Reads a model's terms as `Promise.read` does, with options of `SettledOptions`' types."""
        found = super().read(task, users, path)
        options = converted(found.options, _Options, path, "task.options.")
        settled = {n: v for n in found.options if (v := getattr(options, n)) is not None}
        return msgspec.structs.replace(found, options=settled)


class EvaluationTerms(Promise, frozen=True, kw_only=True):
    """Agreed terms of an evaluation."""

    kind: Literal["evaluation"] = KIND
    model: Key  # SHA-256 of the released model's file
    bins: Annotated[int, Meta(ge=0, le=MOST_BINS)]  # of confidence

    @property
    def method(self) -> str:
        """Name for the ledger."""
        return "confusion-matrix"


def read_terms(task: dict[str, Any], users: set[int], path: Path) -> Terms | EvaluationTerms:
    """Terms of a federation, of either kind.

    Raises:
        ValueError: naming file, field, rule and value.
    """
    return (EvaluationTerms if "kind" in task else Terms).read(task, users, path)


def agreed_file(task: dict[str, Any]) -> str:
    """The name of the one file that a task needs, in the operator's folder and invitation."""
    return MODEL if "kind" in task else TRANSFORM


def read_transform(path: Path) -> "PublicTransform":
    """Reads the file of a public transform.

    Raises:
        ValueError: naming the file, whatever it holds.
    """
    from embed import PublicTransform

    return load_file(path, PublicTransform.load, "a public transform")


def file_hash(path: Path) -> str:
    """SHA-256 of the file that a task needs, hexadecimal."""
    return hashlib.sha256(read_file(path, LARGE)).hexdigest()


def check_file(what: str, path: Path, agreed: str) -> None:
    """Raises ValueError unless the file is the one that was agreed on."""
    if (found := file_hash(path)) != agreed:
        raise ValueError(
            f"{what} must have SHA-256 {agreed} as the federation says, got {found}: {path}"
        )


def promise_fields(privacy: Privacy, users: int) -> dict[str, Any]:
    """Fields of the promise of one session to so many users, as `Promise` has them."""
    by_users = privacy.noise_by == "users"
    return vars(privacy) | {"honest_fraction": float(privacy.fraction(users)) if by_users else None}


def _bounded(name: str, hint: Any) -> Any:
    """Type of an option in a file: as `SettledOptions` states it, with bounds and without paths."""
    number = Annotated[float, Meta(ge=-1e30, le=1e30)]
    lengths = Annotated[float, Meta(gt=0, le=1e30)]
    known = {
        int: Annotated[int, Meta(ge=0, le=MOST_STEPS)],
        float: number,
        tuple[float, ...]: lengths | Annotated[tuple[lengths, ...], Meta(max_length=2)],
        Path: list[Annotated[float, Meta(gt=0, lt=1)]] if name == "prior" else None,
    }
    return Union[tuple(known.get(kind, kind) for kind in get_args(hint))]  # noqa: UP007


_Options = msgspec.defstruct(
    "_Options",
    [(name, _bounded(name, hint), None) for name, hint in get_type_hints(SettledOptions).items()],
    forbid_unknown_fields=True,
)
