"""Commands by name; the module of a command is imported only when it is typed."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import tyro

from pretrain.cli.command import Command
from pretrain.cli.retired import refuse_retired

OMIT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


def load(home: str) -> type[Command]:
    """The dataclass at `module:Class`, whose fields are the options of a command.

    Its module imports little: everything else is imported when the command runs.
    """
    module, _, name = home.partition(":")
    found = getattr(importlib.import_module(module), name)
    _hide_empty_defaults(found)
    return found


@cache
def _hide_empty_defaults(kind: type) -> None:
    """Leaves "(default: None)" out of the help: such an option states its default in words."""
    for base in kind.__bases__:
        _hide_empty_defaults(base)
    types = get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}
    for name in types.keys() & get_annotations(kind).keys():
        parts = (types[name], *get_args(types[name]))
        groups = [part for part in parts if is_dataclass(part)]  # tyro's own settings among them
        for group in groups:
            if isinstance(group, type):
                _hide_empty_defaults(group)
        if not groups and get_origin(types[name]) is not ClassVar:
            shown = tyro.conf.arg(help_behavior_hint=_default, metavar=_metavar(types[name]))
            hinted = Annotated[types[name], shown]
            kind.__annotations__[name] = hinted


def _default(label: str) -> str:
    return "" if label in ("None", "", "''", "False") else f"(default: {label})"


def _metavar(hint: Any) -> str | None:
    """Words of an option that may be left out, without that None; None: as tyro says."""
    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return "|".join(_word(kind) for kind in kinds if kind is not NoneType) or None


def _word(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    if get_origin(kind) is tuple:
        each = _word(get_args(kind)[0])
        return f"{each} [{each} ...]"
    return getattr(kind, "__name__", str(kind)).upper()


def parsed(kind: type[Any], words: list[str], prog: str, markers: tuple[Any, ...]) -> Command:
    """A command from the words after its name.

    A class with `groups` has its options in boxes of those titles. Each group is a base of the
    class, or the type of one of its fields; options of no group are left as they are.
    """
    if not hasattr(kind, "groups"):
        return tyro.cli(kind, args=words, prog=prog, config=markers)
    own, hints = {each.name: each for each in fields(kind)}, get_type_hints(kind)
    places: dict[str, str | None] = {}  # field of the class that a group is; None: its base
    shape: list[Any] = []
    for title, parts in kind.groups(words).items():
        for part in parts:
            place = next((name for name in own if hints[name] is part), None)
            usual = field() if place is None else field(default_factory=own[place].default_factory)
            called = f"group{len(shape)}"
            places[called] = place
            about = (part.__doc__ or "").split("\n\n")[0]
            shown = tyro.conf.arg(name=title, help=about)
            shape.append((called, Annotated[part, shown], usual))
    about = {"__doc__": kind.__doc__}
    made = make_dataclass(kind.__name__, shape, kw_only=True, namespace=about)
    markers = (*markers, tyro.conf.FlagCreatePairsOff)
    found = tyro.cli(made, args=words, prog=prog, config=markers)
    given: dict[str, Any] = {}
    for called, place in places.items():
        group = getattr(found, called)
        given |= vars(group) if place is None else {place: group}
    return kind(**given)


@dataclass(frozen=True, kw_only=True)
class Menu:
    """Commands, each by the place `module:Class` of its dataclass, and further groups of them."""

    name: str
    words: str
    commands: Mapping[str, "str | Menu"]
    default: str = ""  # place of the command that runs if none is typed
    markers: tuple[Any, ...] = OMIT  # tyro's configuration

    def parse(self, arguments: list[str], prog: str) -> Command:
        """Parses a command and its options.

        Args:
            arguments: words after the program's name.
            prog: name of the program, for usage lines.

        Raises:
            SystemExit: after help (0), or for a wrong command or option (2).
        """
        own = self.default != ""  # the program's own menu, whose name nobody types
        refuse_retired(" ".join((() if own else (self.name,)) + (*arguments[:1],)), arguments[1:])
        if arguments and (found := self.commands.get(arguments[0])):
            rest, called = arguments[1:], f"{prog} {arguments[0]}"
            if isinstance(found, Menu):
                return found.parse(rest, called)
            return parsed(load(found), rest, called, self.markers)
        started: dict[str, Any] = {"default": load(self.default)()} if own else {}
        return tyro.cli(self.union(), args=arguments, prog=prog, config=self.markers, **started)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Full name and first line of help of every command in this group."""
        for name, found in self.commands.items():
            if isinstance(found, Menu):
                yield from ((f"{name} {inner}", words) for inner, words in found.lines())
            else:
                yield name, (load(found).__doc__ or "").splitlines()[0]

    def union(self) -> Any:
        """Union of all commands for tyro, which lists them and corrects a misspelt name."""
        kinds = []
        for name, found in self.commands.items():
            if isinstance(found, Menu):
                kind, about = found.union(), tyro.conf.subcommand(name, description=found.words)
            else:
                kind, about = load(found), tyro.conf.subcommand(name)
            kinds.append(Annotated[kind, about])
        return Union[tuple(kinds)]  # noqa: UP007
