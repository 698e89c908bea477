"""Trials of an experiment, and those finished on disk, so that a killed sweep continues."""

import glob
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import embed
import heads
import pretrain
import train_distributed
from train_distributed.store.store import Row, Store, read_store

SUFFIX = ".unfinished.sqlite"
ROOMS = (pretrain, embed, heads, train_distributed)
Cells = list[dict[str, Any]]


@dataclass(frozen=True)
class Work:
    """Trials by their keys; `jobs` plays those that are not done, and yields (key, cells)."""

    keys: tuple[str, ...]
    jobs: Callable[[Mapping[str, Cells]], Iterator[tuple[str, Cells]]]

    @classmethod
    def of(cls, jobs: Mapping[str, Callable[[], Cells]]) -> "Work":
        """Trials that are independent of each other."""
        return cls(
            tuple(jobs),
            lambda done: ((key, make()) for key, make in jobs.items() if key not in done),
        )


@dataclass
class Checkpoint:
    """Store of the cells of each finished trial."""

    path: Path
    identity: dict[str, Any]  # what must be equal for work to be the same
    _store: Store | None = field(default=None, init=False, compare=False)

    @classmethod
    def beside(cls, out: Path, identity: dict[str, Any]) -> "Checkpoint":
        """Checkpoint of a directory to be written; work with another identity has another file.

        So has the same work by other sources, whose rows would not go with those of these.
        """
        identity = {**identity, "sources": sources()}
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cls(out.with_name(f".{out.name}.{digest}{SUFFIX}"), identity)

    def others(self) -> list[Path]:
        """Files of unfinished work with other options or sources for the same directory."""
        stem = glob.escape(self.path.name.removesuffix(SUFFIX).rpartition(".")[0])
        found = self.path.parent.glob(f"{stem}.*.unfinished.*")
        return sorted(path for path in found if self.path.name not in path.name)

    def read(self) -> dict[str, Cells]:
        """Cells by trial; none if the file belongs to other work.

        Raises:
            ValueError: naming a file that was changed.
        """
        first, *jobs = read_store(self.path, "checkpoint") or [Row("", b"", b"")]
        if first.content != self._identity:
            return {}
        return {row.name: json.loads(row.content) for row in jobs}

    def append(self, key: str, rows: Cells) -> None:
        """Records a trial, on disk before it returns; the first one starts the file."""
        if self._store is None:
            self._store = self._begin()
        self._store.append(json.dumps(rows).encode(), key)
        self._store.commit()

    def _begin(self) -> Store:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        store = Store(self.path, "checkpoint")
        with store.transaction() as kept:
            if not kept:
                store.append(self._identity)
            elif kept[0].content != self._identity:
                raise ValueError(f"{self.path} must be of this work, is of another")
        return store

    @property
    def _identity(self) -> bytes:
        return json.dumps(self.identity, sort_keys=True).encode()


@cache
def sources() -> str:
    """SHA-256 of all modules of this project."""
    digest = hashlib.sha256()
    for room in ROOMS:
        place = Path(str(room.__file__)).parent
        for file in sorted(place.rglob("*.py")):
            content = file.read_bytes()
            digest.update(f"{room.__name__}/{file.relative_to(place)} {len(content)} ".encode())
            digest.update(content)
    return digest.hexdigest()
