"""Public names of a package, each loaded when it is asked for, and commands as functions."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from os import PathLike, fspath
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
    they are typed: `epsilon=1.0` for `privacy=Privacy(1.0, 1e-5)`. Text stands for a path, a list
    for a tuple.

    Args:
        name: of the function.
        command: a dataclass whose fields are the options.

    Raises:
        TypeError: from the function, in one line: an option that is missing or unknown.
        ValueError: as well: none of the words that an option may be.
    """

    def run(*arguments: P.args, **options: P.kwargs) -> R_co:
        return _made(name, command, arguments, dict(options)).run()

    run.__name__ = run.__qualname__ = name
    run.__doc__, run.__module__ = command.__doc__, command.__module__
    returned = signature(getattr(command, "run")).return_annotation  # noqa: B009
    shown = signature(command).replace(return_annotation=returned)
    run.__signature__ = shown  # pyright: ignore[reportFunctionMemberAccess]
    return run


def _made(name: str, command: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    hints = _hints(command)
    groups: dict[str, Any] = {field: hints[field] for field in hints if is_dataclass(hints[field])}
    known = {each.name for each in fields(command)}
    for field, group in groups.items():
        own = {each.name for each in fields(group)} - known
        if given := {word: options.pop(word) for word in own & options.keys()}:
            whole = options.get(field, _default(command, field))
            options[field] = replace(whole, **_converted(group, given))
    if unknown := options.keys() - known:
        known |= {each.name for group in groups.values() for each in fields(group)}
        wrong = min(unknown)
        near = "".join(f", perhaps {word}" for word in get_close_matches(wrong, known, 1))
        raise TypeError(f"{name}() has no option {wrong!r}{near}; help({name}) names all")
    try:
        given = signature(command).bind(*arguments, **options).arguments
    except TypeError as error:
        raise TypeError(f"{name}(): {error}") from error
    return command(**_converted(command, given))


def _converted(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Values with paths for text and tuples for lists where those are wanted.

    ValueError: text that is none of the words to choose from.
    """
    made = {name: _as_declared(value, _hints(kind)[name]) for name, value in given.items()}
    for name, value in made.items():
        words = _words(kinds := _kinds(_hints(kind)[name]))
        if words and isinstance(value, str) and str not in kinds:
            check.one_of(words, **{name: value})
    return made


def _as_declared(value: Any, hint: Any) -> Any:
    kinds = _kinds(hint)
    if isinstance(value, list | tuple):
        of = next((get_args(kind)[0] for kind in kinds if get_origin(kind) is tuple), Any)
        return tuple(_as_declared(each, of) for each in value)
    text = isinstance(value, str) and value not in _words(kinds)
    if text and Path in kinds and str not in kinds:
        return Path(value)
    return fspath(value) if isinstance(value, PathLike) and Path not in kinds else value


def _kinds(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _words(kinds: tuple[Any, ...]) -> list[Any]:
    return [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _default(command: Any, field: str) -> Any:
    (found,) = (each for each in fields(command) if each.name == field)
    return found.default_factory() if callable(found.default_factory) else found.default
