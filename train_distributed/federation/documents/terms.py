"""A federation's `task`: what every user submits and what is promised, read without trust."""

import hashlib
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from train_distributed.federation.documents.document import LARGE, Document, load_file, read_file
from train_distributed.federation.documents.party import MOST_ROWS
from train_distributed.one_shot.registry import METHODS, SettledOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.released import MOST_BINS

if TYPE_CHECKING:
    from embed import PublicTransform

MOST_CLASSES, MOST_STEPS = 2**20, 2**31
LONGEST_NAME = 100
HASH = re.compile("[0-9a-f]{64}")
_CLASS = re.compile(f".{{1,{LONGEST_NAME}}}")
KIND = "evaluation"  # of a task; a model's states none
MODEL, TRANSFORM = "model.safetensors", "transform.safetensors"
_PROMISE = ("epsilon", "delta", "unit", "group_size")
ASSUMED = ("honest_fraction", "noise_by")  # one of them
SIZES = "sizes"  # of users who are not on a roll, which states them


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Agreed terms of a model; `ModelTask.of` checks whether it can be computed."""

    method: str  # one of the registry's METHODS
    options: dict[str, Any]  # those of `SettledOptions` that were set
    num_classes: int  # K
    sizes: dict[int, int]  # user -> training rows; empty where a roll states them
    privacy: Privacy
    transform: str  # SHA-256 of the public transform's file, hexadecimal
    class_names: tuple[str, ...] = ()

    def as_task(self) -> dict[str, Any]:
        """JSON-ready task of a federation."""
        privacy = self.privacy
        task: dict[str, Any] = {
            "method": self.method,
            "options": self.options,
            "num_classes": self.num_classes,
            "transform": self.transform,
            **sizes_field(self.sizes),
            **privacy_fields(privacy, len(self.sizes)),
        }
        return task | ({"class_names": list(self.class_names)} if self.class_names else {})

    @staticmethod
    def read(task: dict[str, Any], users: set[int], path: Path) -> "Terms":
        """Reads what `as_task` made.

        Args:
            task: of a federation.
            users: whose sizes it must hold; none where they are on a roll.
            path: of the federation, for errors.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = Document(path, task, "task.")
        required = ("method", "options", "num_classes", "transform", *_PROMISE)
        document.only(required, ["class_names", *ASSUMED, SIZES])
        classes = document.whole("num_classes", 2, MOST_CLASSES)
        rows = read_sizes(document, users)
        return Terms(
            method=_choice(document, "method", tuple(METHODS)),
            options=_options(document.part("options")),
            num_classes=classes,
            sizes=rows,
            privacy=read_privacy(document),
            transform=document.text("transform", HASH, "a SHA-256 in hexadecimal"),
            class_names=read_class_names(document, classes) if "class_names" in task else (),
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationTerms:
    """Agreed terms of an evaluation."""

    model: str  # SHA-256 of the released model's file, hexadecimal
    bins: int  # of confidence
    class_names: tuple[str, ...]  # of the model
    sizes: dict[int, int]  # user -> evaluation rows; empty where a roll states them
    privacy: Privacy
    method: Literal["confusion-matrix"] = "confusion-matrix"

    @property
    def num_classes(self) -> int:
        """The number K of classes."""
        return len(self.class_names)

    def as_task(self) -> dict[str, Any]:
        """JSON-ready task of a federation."""
        return {
            "kind": KIND,
            "model": self.model,
            "bins": self.bins,
            "num_classes": self.num_classes,
            "class_names": list(self.class_names),
            **sizes_field(self.sizes),
            **privacy_fields(self.privacy, len(self.sizes)),
        }

    @staticmethod
    def read(task: dict[str, Any], users: set[int], path: Path) -> "EvaluationTerms":
        """Reads what `as_task` made; as `Terms.read`.

        Raises:
            ValueError: naming file, field, rule and value.
        """
        document = Document(path, task, "task.")
        required = ("kind", "model", "bins", "num_classes", "class_names", *_PROMISE)
        document.only(required, [*ASSUMED, SIZES])
        document.text("kind", re.compile(KIND), f'"{KIND}"')
        names = read_class_names(document, document.whole("num_classes", 2, MOST_CLASSES))
        return EvaluationTerms(
            model=document.text("model", HASH, "a SHA-256 in hexadecimal"),
            bins=document.whole("bins", 0, MOST_BINS),
            class_names=names,
            sizes=read_sizes(document, users),
            privacy=read_privacy(document),
        )


def read_terms(task: dict[str, Any], users: set[int], path: Path) -> Terms | EvaluationTerms:
    """Terms of a federation, of either kind.

    Raises:
        ValueError: naming file, field, rule and value.
    """
    kind = EvaluationTerms if "kind" in task else Terms
    return kind.read(task, users, path)


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


def sizes_field(sizes: dict[int, int]) -> dict[str, Any]:
    """The users' sizes as `read_sizes` reads them."""
    return {SIZES: {str(user): size for user, size in sizes.items()}} if sizes else {}


def read_sizes(document: Document, users: set[int]) -> dict[int, int]:
    """User -> rows, of just these users, in their order."""
    if not users and SIZES not in document.values:
        return {}
    sizes = document.part(SIZES)
    rows = {user: sizes.whole(name, 1, MOST_ROWS) for user, name in sizes.identities()}
    if rows.keys() != users:
        odd = sorted(rows.keys() ^ users)[:10]
        document.refuse("sizes", "of the federation's users", f"others, difference {odd}")
    return {user: rows[user] for user in sorted(users)}


def privacy_fields(privacy: Privacy, users: int) -> dict[str, Any]:
    """The promise of one session, as `read_privacy` reads it."""
    by_servers = {"noise_by": privacy.noise_by}
    by_users = {"honest_fraction": float(privacy.fraction(users))}
    return {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        **(by_servers if privacy.noise_by == "servers" else by_users),
        "unit": privacy.unit,
        "group_size": privacy.group_size,
    }


def read_privacy(document: Document) -> Privacy:
    """The promise of one session."""
    most, by_servers = math.nextafter(1, 2), "noise_by" in document.values
    if by_servers:
        _choice(document, "noise_by", ("servers",))
    return Privacy(
        document.number("epsilon", 0, math.inf),
        document.number("delta", 0, 1),
        None if by_servers else document.number("honest_fraction", 0, most),
        _choice(document, "unit", ("record", "user")),
        document.whole("group_size", 1, MOST_ROWS),
        "servers" if by_servers else "users",
    )


def read_class_names(document: Document, classes: int) -> tuple[str, ...]:
    """Distinct names."""
    names = document.list("class_names", classes)
    found = tuple(names.text(place, _CLASS, "a short line of text") for place in names.values)
    if len(set(found)) != classes:
        document.refuse("class_names", f"{classes} distinct names", found)
    return found


def _options(document: Document) -> dict[str, Any]:
    """Options of a method that is summed, by the types that `SettledOptions` states."""
    hints = {name: get_args(hint) for name, hint in get_type_hints(SettledOptions).items()}
    summed = [name for name, kinds in hints.items() if Path not in kinds or name == "prior"]
    document.only([], summed)
    return {name: _option(document, name, hints[name]) for name in document.values}


def _option(document: Document, name: str, kinds: tuple[Any, ...]) -> Any:
    if name == "prior" and isinstance(document.values[name], list):
        shares = document.list(name, MOST_CLASSES)
        return [shares.number(place, 0, 1) for place in shares.values]
    if get_origin(kinds[0]) is tuple:
        if not isinstance(document.values[name], list | tuple):
            return document.number(name, 0, 1e30)
        numbers = document.list(name, 2)
        return tuple(numbers.number(place, 0, 1e30) for place in numbers.values)
    if int in kinds:
        return document.whole(name, 0, MOST_STEPS)
    if float in kinds:
        return document.number(name, -1e30, 1e30)
    choices = get_args(kinds[0])
    if isinstance(choices[0], int):
        return document.whole(name, min(choices), max(choices))
    return _choice(document, name, choices)


def _choice(document: Document, name: str, choices: tuple[Any, ...]) -> Any:
    value = document.text(name)
    if value not in choices:
        document.refuse(name, f"one of {', '.join(choices)}", value)
    return value
