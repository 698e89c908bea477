"""Commands by name: the module of a command is imported when it is the one that was typed."""

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Union

import tyro

from pretrain.cli.command import Command

OMIT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


@dataclass(frozen=True)
class Entry:
    """A command's name and where its dataclass is.

    Its module imports little: what the command works with is imported when it runs.
    """

    name: str
    home: str  # module:Class

    def load(self) -> type[Command]:
        """The dataclass whose fields are the options."""
        module, _, name = self.home.partition(":")
        return getattr(importlib.import_module(module), name)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Name and the first line of what it does."""
        yield self.name, (self.load().__doc__ or "").splitlines()[0]

    def kind(self) -> Any:
        """As tyro takes it beside others."""
        return Annotated[self.load(), tyro.conf.subcommand(self.name)]


@dataclass(frozen=True, kw_only=True)
class Menu:
    """Commands, and menus of more, below a name."""

    name: str
    words: str
    entries: tuple["Entry | Menu", ...]
    default: Entry | None = None  # what runs where no command is typed
    markers: tuple[Any, ...] = OMIT  # tyro's

    def parse(self, arguments: list[str], prog: str) -> Command:
        """The command that was typed, its options filled in.

        Args:
            arguments: what was typed after the program's name.
            prog: that name, for usage lines.

        Raises:
            SystemExit: help was asked for (0), or a wrong command or option (2).
        """
        for entry in self.entries:
            if arguments[:1] == [entry.name]:
                rest, called = arguments[1:], f"{prog} {entry.name}"
                if isinstance(entry, Menu):
                    return entry.parse(rest, called)
                return tyro.cli(entry.load(), args=rest, prog=called, config=self.markers)
        started = {} if self.default is None else {"default": self.default.load()()}
        return tyro.cli(self.union(), args=arguments, prog=prog, config=self.markers, **started)

    def lines(self) -> Iterator[tuple[str, str]]:
        """All commands below this name, in full, and the first line of what each does."""
        for entry in self.entries:
            for name, words in entry.lines():
                yield name if isinstance(entry, Entry) else f"{entry.name} {name}", words

    def union(self) -> Any:
        """All of it as one type for tyro, which lists it and says what a wrong name should be."""
        return Union[tuple(entry.kind() for entry in self.entries)]  # noqa: UP007

    def kind(self) -> Any:
        """As tyro takes it beside others."""
        return Annotated[self.union(), tyro.conf.subcommand(self.name, description=self.words)]
