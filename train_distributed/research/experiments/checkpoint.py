"""Finished jobs of unfinished work, on disk line by line, so that a killed sweep continues."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pretrain.cli.output import new_file

Rows = list[dict[str, Any]]


@dataclass
class Checkpoint:
    """A line per finished job; a torn last line counts for nothing."""

    path: Path
    identity: dict[str, Any]  # what must be equal for work to be the same
    _started: bool = field(default=False, init=False)

    def read(self) -> dict[str, Rows]:
        """Rows by job; none if the file belongs to other work."""
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
        whole = [json.loads(line) for line in self.path.read_text().split("\n")[:-1]]
        mine = json.loads(json.dumps({"sweep": self.identity}))
        return whole if whole[:1] == [mine] else []
