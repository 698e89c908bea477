"""Commands by what is typed; the module of a command is imported only when it is typed."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, make_dataclass
from difflib import get_close_matches
from functools import cache
from inspect import get_annotations
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import tyro

from pretrain.cli.command import USAGE_ERROR, Command
from pretrain.public import find
from pretrain.retired import refuse_retired

OMIT = (tyro.conf.OmitArgPrefixes,)  # tyro's configuration
Group = TypeVar("Group")


def load(home: str) -> type[Command]:
    """The dataclass of the function at `module:name`, or there: its fields are the options.

    Its module imports little: everything else is imported when the command runs.
    """
    found = getattr(found := find(home), "command", found)
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


def parsed(kind: type[Any], words: list[str], prog: str) -> Command:
    """A command from the words after its name.

    A class with `groups` has its options in boxes of those titles. Each group is a base of the
    class, or the type of one of its fields; options of no group are left as they are.
    """
    if not hasattr(kind, "groups"):
        return tyro.cli(kind, args=words, prog=prog, config=getattr(kind, "markers", OMIT))
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
    found = tyro.cli(made, args=words, prog=prog, config=(*OMIT, tyro.conf.FlagCreatePairsOff))
    given: dict[str, Any] = {}
    for called, place in places.items():
        group = getattr(found, called)
        given |= vars(group) if place is None else {place: group}
    return kind(**given)


def part_of(command: Any, kind: type[Group]) -> Group:
    """Options of one group of a command."""
    return kind(**{each.name: getattr(command, each.name) for each in fields(kind)})  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class Menu:
    """Commands of a program: a table of functions, by what is typed.

    The function `federation_init` is the command `federation init` where `federation` is a group,
    `hold_out` is `hold-out`.
    """

    room: str  # first word of its commands in the program of all rooms, such as "embed"; or ""
    words: str
    homes: Mapping[str, str]  # name of a function -> `module:name`
    groups: Mapping[str, str] = field(default_factory=dict)  # first words of some, and what of
    rooms: tuple["Menu", ...] = ()  # whose commands are among these, after their rooms' names
    default: str = ""  # command that runs if none is typed

    @property
    def commands(self) -> dict[str, str]:
        """Homes by what is typed, such as "run" and "federation init", in the order of the help."""
        found = {}
        for name, home in self.homes.items():
            group, _, rest = name.partition("_")
            grouped = group in self.groups and rest
            found[f"{group} {rest}" if grouped else name] = home
        for menu in self.rooms:
            found |= {f"{menu.room} {name}": home for name, home in menu.commands.items()}
        return {name.replace("_", "-"): home for name, home in found.items()}

    def parse(self, arguments: list[str], prog: str) -> Command:
        """Parses a command and its options.

        Args:
            arguments: words after the program's name.
            prog: name of the program, for usage lines.

        Raises:
            SystemExit: after help (0), or for a wrong command or option (2).
        """
        commands = self.commands
        for count in (2, 1):
            typed, rest = " ".join(arguments[:count]), arguments[count:]
            refuse_retired(f"{self.room} {typed}".strip(), rest)
            if home := commands.get(typed):
                return parsed(load(home), rest, f"{prog} {typed}")
        if self.default and not arguments:
            return parsed(load(commands[self.default]), [], prog)
        first, *more = [*arguments, ""]
        group = f"{first} " if any(name.startswith(f"{first} ") for name in commands) else ""
        word = ([*more, ""] if group else [first])[0]
        if word in ("-h", "--help"):
            print(self.listing(prog, group))
            raise SystemExit(0)
        inner = [name.removeprefix(group).split()[0] for name in commands if name.startswith(group)]
        choices = list(dict.fromkeys(inner))
        near = get_close_matches(word, choices, n=1)
        said = f"command must be one of {', '.join(choices)}, got {word or 'none'}"
        print(said + (f": perhaps {near[0]}" if near else ""), file=sys.stderr)
        raise SystemExit(USAGE_ERROR)

    def lines(self) -> Iterator[tuple[str, str]]:
        """Yields (name, first line of the help) of each command."""
        for name, home in self.commands.items():
            yield name, (load(home).__doc__ or "").splitlines()[0]

    def listing(self, prog: str, group: str = "") -> str:
        """Help of the program, or of a group of its commands, such as "federation "."""
        lines = {name: words for name, words in self.lines() if name.startswith(group)}
        wide = max(map(len, lines))
        about = {each.room: each.words for each in self.rooms} | dict(self.groups)
        usual = f" Without a command: {self.default}." if self.default else ""
        return "\n".join(
            [
                f"usage: {prog} {group}[-h] COMMAND [options]",
                "",
                about.get(group.strip(), self.words),
                "",
                *(f"  {name:{wide}}  {words}" for name, words in lines.items()),
                "",
                f"Options of a command: {prog} COMMAND --help.{usual}",
            ]
        )
