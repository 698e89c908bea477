"""Finished jobs of unfinished work, on disk line by line, so that a killed sweep continues."""

import glob
import hashlib
import json
import os
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import embed
import heads
import pretrain
import train_distributed
from pretrain.cli.output import new_file

SUFFIX = ".unfinished.jsonl"
ROOMS = (pretrain, embed, heads, train_distributed)
Rows = list[dict[str, Any]]


@dataclass
class Checkpoint:
    """A line per finished job; a torn last line counts for nothing."""

    path: Path
    identity: dict[str, Any]  # what must be equal for work to be the same
    _started: bool = field(default=False, init=False)

    @classmethod
    def beside(cls, out: Path, identity: dict[str, Any]) -> "Checkpoint":
        """That of a directory to be written: work with another identity has a file of its own.

        So has the same work by other sources, whose rows would not go with those of these.
        """
        identity = {**identity, "sources": sources()}
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return cls(out.with_name(f".{out.name}.{digest}{SUFFIX}"), identity)

    def others(self) -> list[Path]:
        """Files of unfinished work with other options or sources for the same directory."""
        stem = glob.escape(self.path.name.removesuffix(SUFFIX).rpartition(".")[0])
        found = self.path.parent.glob(f"{stem}.*{SUFFIX}")
        return sorted(path for path in found if path.name != self.path.name)

    def read(self) -> dict[str, Rows]:
        """Rows by job; none if the file belongs to other work.

        Raises:
            ValueError: naming a file that was changed.
        """
        jobs: list[Any] = self._lines()[1:]
        return {job["job"]: job["rows"] for job in jobs}

    def append(self, key: str, rows: Rows) -> None:
        """Records a job, on disk before it returns; the first one starts the file."""
        if not self._started:
            self._start()
        with self.path.open("a") as file:
            file.write(json.dumps({"job": key, "rows": rows}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _start(self) -> None:
        """Leaves what belongs to this work, without a torn line."""
        lines = self._lines() or [{"sweep": self.identity}]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(self.path) as fresh:  # a kill here must not cost finished jobs
            fresh.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._started = True

    def _lines(self) -> list[Any]:
        """Whole lines of the file, none if it is missing or of other work."""
        if not self.path.exists():
            return []
        try:
            whole = [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]
        except ValueError as error:
            raise ValueError(f"{self.path} must hold a JSON line per job, got: {error}") from error
        mine = json.loads(json.dumps({"sweep": self.identity}))
        return whole if whole[:1] == [mine] else []


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
