"""One bad input: what is typed, what is spoilt before, and how the one line must read."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

OUT = {  # commands that write a directory: it is told to replace a model, which it must not do
    *("embed run", "embed hold-out", "embed exclude", "embed fit-transform"),
    *("pretrain simclr", "pretrain probe", "pretrain convert", "run"),
    *("predict", "evaluate", "export", "card", "rehearse", "sweep", "audit", "protect"),
}
DEEP = '{"a":' * 50_000 + "0" + "}" * 50_000  # more levels than a stack holds
OVER = r"out must not hold what the command reads, \S+, got \S+"
NEW = r"output directory must not exist .* got old"
NAN_ROW = "must be finite, got nan in row 7"
Spoil = Callable[[Path], object]  # of the folder that the command runs in


@dataclass(frozen=True)
class Case:
    typed: str  # without the program's name
    says: str  # a regular expression: argument, rule, value
    spoil: Spoil | None = None

    @property
    def arguments(self) -> list[str]:
        """As the shell would give them, an existing model as the directory to write."""
        words = shlex.split(self.typed)
        writes = words[0] in OUT or " ".join(words[:2]) in OUT
        return words + (["--out", "old", "--overwrite"] if writes and "--out" not in words else [])


def table(*rows: Any) -> list[Case]:
    """Cases of (typed, says) or (typed, says, spoil)."""
    return [Case(*row) for row in rows]


def under(rows: Mapping[str, list[Any]]) -> list[Case]:
    """Cases by the words that they begin with.

    ` | ` separates what is refused alike, `{}` is the last word; of several spoils each is a case.
    """
    return [
        Case(f"{first} {typed}".strip(), says.replace("{}", typed.split(" ")[-1]), spoil)
        for first, cases in rows.items()
        for words, says, *spoils in cases
        for typed in words.split(" | ")
        for spoil in spoils or (None,)
    ]


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder: mode and content by path; of directories and links what they are."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = b""
        if path.is_symlink():
            content = str(path.readlink()).encode()
        elif path.is_file():
            content = path.read_bytes()
        found[path.relative_to(folder).as_posix()] = (path.lstat().st_mode, content)
    return found


def cut(name: str, keep: int = -1) -> Spoil:
    """Truncates a file: to half of it, or to so many bytes."""

    def spoil(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) // 2 if keep < 0 else keep])

    return spoil


def put(name: str, content: str | bytes) -> Spoil:
    """Writes a file, over the one that may be there."""

    def spoil(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)

    return spoil


def gone(name: str) -> Spoil:
    return lambda folder: (folder / name).unlink()


def arrays(**held: object) -> Spoil:
    return lambda folder: np.savez(folder / "data.npz", **held)  # pyright: ignore[reportArgumentType]
