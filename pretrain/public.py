"""Public names of a package, each loaded when it is asked for, and commands as functions."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pretrain import check

DISTRIBUTION = "blind-averaging"
SHOWN = ("__all__", "__doc__", "__file__", "__name__", "__version__")

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[R_co]):
    """A command with its options."""

    def run(self) -> R_co:
        """Does the work; returns what it wrote."""
        ...


def public_names(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package.

    Args:
        package: its name.
        homes: public name -> the module that it is in, or is, below the package.
    """

    def load(name: str) -> Any:
        if name == "__version__":
            return version(DISTRIBUTION)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = import_module(f"{package}.{homes[name]}")
        found = home if homes[name] == name else getattr(home, name)
        setattr(sys.modules[package], name, found)
        return found

    return load, lambda: sorted([*homes, *SHOWN])


def function(name: str, command: Callable[P, Runs[R_co]]) -> Callable[P, R_co]:
    """Function that runs a command and returns what it wrote.

    Its arguments are the command's fields. Options of a group may also be given by themselves, as
    they are typed: `epsilon=1.0` for `privacy=Privacy(1.0, 1e-5)`. Text stands for a path.

    Args:
        name: of the function.
        command: a dataclass whose fields are the options.

    Raises:
        TypeError: from the function, in one line: an option that is missing or unknown.
        ValueError: as well: none of the words that an option may be.
    """
    shown = signature(command)

    def run(*arguments: P.args, **options: P.kwargs) -> R_co:
        given = _grouped(command, dict(options))
        try:
            named = shown.bind(*arguments, **given).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}; help({name}) names all") from error
        build: Any = command
        return build(**_converted(command, named)).run()

    run.__name__ = run.__qualname__ = name
    run.__doc__, run.__module__ = command.__doc__, command.__module__
    returned = signature(getattr(command, "run")).return_annotation  # noqa: B009
    typed = shown.replace(return_annotation=returned)
    run.__signature__ = typed  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _grouped(command: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Options of the command, those of its groups within them."""
    hints, own = get_type_hints(command), {each.name: each for each in fields(command)}
    for name, field in own.items():
        if is_dataclass(group := hints[name]):
            inner = {each.name for each in fields(group)} - own.keys()
            if given := {word: options.pop(word) for word in inner & options.keys()}:
                made = field.default_factory  # which every group has
                whole = options[name] if name in options else made()  # pyright: ignore[reportCallIssue]
                options[name] = replace(whole, **_converted(group, given))
    return options


def _converted(kind: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Values with paths for text where those are wanted.

    ValueError: text that is none of the words to choose from.
    """
    made, hints = dict(given), get_type_hints(kind)
    for name, value in given.items():
        hint = hints[name]
        kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        words = [w for kind in kinds if get_origin(kind) is Literal for w in get_args(kind)]
        if isinstance(value, str) and str not in kinds and value not in words:
            if Path in kinds:
                made[name] = Path(value)
            elif words:
                check.one_of(words, **{name: value})
    return made
