"""Finished jobs of unfinished work, on disk line by line, so that a killed sweep continues."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Journal:
    """A line per finished job; a torn last line counts for nothing."""

    path: Path
    identity: dict[str, Any]  # what must be equal for work to be the same

    def read(self) -> dict[str, Rows]:
        """Rows by job; starts the file if there is none, or if it belongs to other work."""
        lines, first = self._lines(), {"sweep": self.identity}
        if not lines or lines[0] != json.loads(json.dumps(first)):
            lines = [first]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        jobs: list[Any] = lines[1:]
        return {job["job"]: job["rows"] for job in jobs}

    def append(self, key: str, rows: Rows) -> None:
        """Records a job, on disk before it returns."""
        with self.path.open("a") as file:
            file.write(json.dumps({"job": key, "rows": rows}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _lines(self) -> list[Any]:
        if not self.path.exists():
            return []
        whole = self.path.read_text().split("\n")[:-1]
        return [json.loads(line) for line in whole]
