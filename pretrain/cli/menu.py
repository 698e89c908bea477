"""Commands by name; the module of a command is imported only when it is typed."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass
from functools import cache
from inspect import get_annotations
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin, get_type_hints

import tyro

from pretrain.cli.command import Command
from pretrain.cli.retired import refuse_retired

OMIT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


@dataclass(frozen=True)
class Entry:
    """Name of a command, and the place of its dataclass.

    The module imports little: everything else is imported when the command runs.
    """

    name: str
    home: str  # module:Class

    def load(self) -> type[Command]:
        """The dataclass whose fields are the options."""
        module, _, name = self.home.partition(":")
        found = getattr(importlib.import_module(module), name)
        _hide_empty_defaults(found)
        return found

    def lines(self) -> Iterator[tuple[str, str]]:
        """Name and first line of help."""
        yield self.name, (self.load().__doc__ or "").splitlines()[0]

    def kind(self) -> Any:
        """Annotation that lets tyro combine this command with others."""
        return Annotated[self.load(), tyro.conf.subcommand(self.name)]


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
    """Group of commands and of further groups."""

    name: str
    words: str
    entries: tuple["Entry | Menu", ...]
    default: Entry | None = None  # runs if no command is typed
    markers: tuple[Any, ...] = OMIT  # tyro's configuration

    def parse(self, arguments: list[str], prog: str) -> Command:
        """Parses a command and its options.

        Args:
            arguments: words after the program's name.
            prog: name of the program, for usage lines.

        Raises:
            SystemExit: after help (0), or for a wrong command or option (2).
        """
        own = self.default is not None  # the program's own menu, whose name nobody types
        refuse_retired(" ".join((() if own else (self.name,)) + (*arguments[:1],)), arguments[1:])
        for entry in self.entries:
            if arguments[:1] == [entry.name]:
                rest, called = arguments[1:], f"{prog} {entry.name}"
                if isinstance(entry, Menu):
                    return entry.parse(rest, called)
                return tyro.cli(entry.load(), args=rest, prog=called, config=self.markers)
        started: dict[str, Any] = {} if self.default is None else {"default": self.default.load()()}
        return tyro.cli(self.union(), args=arguments, prog=prog, config=self.markers, **started)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Full name and first line of help of every command in this group."""
        for entry in self.entries:
            for name, words in entry.lines():
                yield name if isinstance(entry, Entry) else f"{entry.name} {name}", words

    def union(self) -> Any:
        """Union of all entries for tyro, which lists them and corrects a misspelt name."""
        return Union[tuple(entry.kind() for entry in self.entries)]  # noqa: UP007

    def kind(self) -> Any:
        """Annotation that lets tyro combine this group with others."""
        return Annotated[self.union(), tyro.conf.subcommand(self.name, description=self.words)]
