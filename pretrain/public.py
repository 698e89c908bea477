"""Public names of a package, each loaded when it is asked for, and commands as functions.

The stub beside a package (`__init__.pyi`) lists its names once, for type checkers and for Python.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from importlib.metadata import version
from inspect import Parameter, Signature, cleandoc, get_annotations, getsource, signature
from pathlib import Path
from textwrap import dedent
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
from pretrain.retired import MOVED

DISTRIBUTION = "blind-averaging"
SHOWN = ("__all__", "__doc__", "__file__", "__name__", "__version__")

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class Runs(Protocol[R_co]):
    """A command with its options."""

    def run(self) -> R_co:
        """Does the work; returns what it wrote."""
        ...


def stub_names(module: str) -> dict[str, str]:
    """Names that the stub beside a module lists, in its order, and the home of each.

    A home is `module:name`; `from . import name as name` is a module of the package.
    """
    stub = Path(str(sys.modules[module].__file__)).with_suffix(".pyi")
    return {
        alias.asname: f"{node.module}:{alias.name}" if node.module else f"{module}.{alias.name}"
        for node in ast.parse(stub.read_text("utf-8")).body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }


def find(home: str) -> Any:
    """The object at `module:name`, or the module; a command's function gets its docstring."""
    module, _, name = home.partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found


def attach(
    package: str, homes: dict[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, whose names its stub lists.

    Args:
        package: its name, of a module that is being loaded.
        homes: name -> home, in the place of the stub's.
    """
    found = stub_names(package) if homes is None else homes

    def load(name: str) -> Any:
        if name == "__version__":
            return version(DISTRIBUTION)
        if place := MOVED.get(package, {}).get(name):  # an AttributeError would lose the line
            raise ImportError(f"{package}.{name} is now {place}")
        if name not in found:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        loaded = find(found[name])
        if kind := getattr(loaded, "command", None):
            loaded.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "", *_arguments(kind)])
        setattr(sys.modules[package], name, loaded)
        return loaded

    return load, lambda: sorted([*found, *SHOWN]), sorted(found)


def function(name: str, command: Callable[P, Runs[R_co]]) -> Callable[P, R_co]:
    """Function that runs a command and returns what it wrote.

    Its arguments are the command's fields. Options of a group may also be given by themselves, as
    they are typed: `epochs=3` for `config=SimCLRConfig(epochs=3)`. Text stands for a path, and the
    other way round.

    Args:
        name: of the function.
        command: a dataclass whose fields are the options.

    Raises:
        TypeError: from the function, in one line: an option that is missing or unknown.
        ValueError: as well: none of the words that an option may be.
    """
    shown = _by_keyword(signature(command))

    def run(*arguments: P.args, **options: P.kwargs) -> R_co:
        given = _grouped(command, dict(options))
        try:
            named = shown.bind(*arguments, **given).arguments
        except TypeError as error:
            raise TypeError(f"{name}(): {error}; help({name}) names all") from error
        build: Any = command
        return build(**_converted(command, named)).run()

    made: Any = run
    made.__name__ = made.__qualname__ = name
    made.__doc__, made.__module__, made.command = command.__doc__, command.__module__, command
    returned = signature(getattr(command, "run")).return_annotation  # noqa: B009
    made.__signature__ = shown.replace(return_annotation=returned)
    return made


def _by_keyword(shown: Signature) -> Signature:
    """The first argument may be given by its place, all others by their names alone."""
    first, *others = shown.parameters.values()
    return shown.replace(
        parameters=[first, *(each.replace(kind=Parameter.KEYWORD_ONLY) for each in others)]
    )


def _arguments(command: type) -> Iterator[str]:
    """`Args:` of a docstring: every option in the words of the help, a group in its own."""
    hints = get_type_hints(command)
    words = {name: (hints[name].__doc__ or "").split("\n")[0] for name in hints}
    for base in reversed(command.__mro__):
        if get_annotations(base):
            words |= {name: said for name, said in _words(base) if said}
    yield "Args:"
    for each in fields(command):  # pyright: ignore[reportArgumentType]
        yield f"    {each.name}: {words[each.name]}"


def _words(kind: type) -> Iterator[tuple[str, str]]:
    """Fields of a class and the docstrings below them, or the comments beside them."""
    source = dedent(getsource(kind))
    lines, body = source.splitlines(), ast.parse(source).body[0].body  # pyright: ignore[reportAttributeAccessIssue]
    for field, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            match below:
                case ast.Expr(value=ast.Constant(value=str(words))):
                    pass
                case _:
                    words = lines[(field.end_lineno or 1) - 1].partition("  # ")[2]
            yield ast.unparse(field.target), " ".join(words.split())


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
    """Values with paths for text where those are wanted, and text for paths.

    ValueError: text that is none of the words to choose from, or in place of several words.
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
            elif any(get_origin(kind) is tuple for kind in kinds):  # text iterates by letters
                raise ValueError(f"{name} must be a list or tuple, got {value!r}")
        if isinstance(value, Path) and str in kinds and Path not in kinds:
            made[name] = str(value)
    return made
