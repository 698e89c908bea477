"""A command as a function: its options are the arguments, checked as the command line checks."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from difflib import get_close_matches
from functools import cache
from inspect import signature
from os import PathLike, fspath
from pathlib import Path
from types import UnionType
from typing import (
    Any,
    ParamSpec,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from pretrain import check

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[R_co]):
    """A command with its options."""

    def run(self) -> R_co:
        """Does the work; returns what it wrote."""
        ...


def function(name: str, command: Callable[P, Runs[R_co]]) -> Callable[P, R_co]:
    """Function that runs a command and returns what it wrote.

    Its arguments are the command's fields. Options of a group may also be given by themselves, as
    they are typed: `epsilon=1.0` for `privacy=Privacy(1.0, 1e-5)`. Text stands for a path, a list
    for a tuple.

    Args:
        name: of the function.
        command: a dataclass whose fields are the options.

    Raises:
        TypeError: from the function, in one line: an option that is missing, unknown or of another
            type.
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
    groups = _groups(command)
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
    made = command(**_converted(command, given))
    for field in groups:
        check.fields(getattr(made, field))
    return made


def _converted(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    """Values with paths for text and tuples for lists where those are wanted; then checked."""
    hints = get_type_hints(kind)
    values = {name: _as_declared(value, hints[name]) for name, value in given.items()}
    for name, value in values.items():
        check.types(hints[name], **{name: value})
    return values


def _as_declared(value: Any, hint: Any) -> Any:
    parts = get_args(hint)
    if get_origin(hint) in (Union, UnionType) and not check.fits(value, hint):
        tried = ((_as_declared(value, each), each) for each in parts)
        return next((found for found, each in tried if check.fits(found, each)), value)
    if get_origin(hint) is tuple and isinstance(value, list | tuple):
        return tuple(_as_declared(each, parts[0]) for each in value)
    if hint is Path and isinstance(value, str):
        return Path(value)
    return fspath(value) if hint is str and isinstance(value, PathLike) else value


@cache
def _groups(command: Any) -> dict[str, Any]:
    hints = get_type_hints(command)
    return {name: kind for name, kind in hints.items() if is_dataclass(kind)}


def _default(command: Any, field: str) -> Any:
    (found,) = (each for each in fields(command) if each.name == field)
    return found.default_factory() if callable(found.default_factory) else found.default
