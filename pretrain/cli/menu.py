"""Commands by name; the module of a command is imported only when it is typed."""

import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

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
            hinted = Annotated[types[name], tyro.conf.arg(help_behavior_hint=_default)]
            kind.__annotations__[name] = hinted


def _default(label: str) -> str:
    return "" if label in ("None", "", "''") else f"(default: {label})"


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
            return tyro.cli(load(found), args=rest, prog=called, config=self.markers)
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
