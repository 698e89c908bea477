"""Log of a run, success or not: a directory with log.txt and status.json."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.cli.output import new_file

RUNS, LOG, STATUS = "runs", "log.txt", "status.json"


@dataclass(frozen=True)
class RunLog:
    """Lines for the terminal and for ever."""

    directory: Path

    @staticmethod
    def begin(folder: Path, what: str) -> "RunLog":
        """A new directory below `folder/runs`, named by the time.

        Raises:
            OSError: it cannot be written.
        """
        stem, attempt = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{what}", 0
        while True:
            directory = folder.resolve() / RUNS / (f"{stem}-{attempt}" if attempt else stem)
            try:
                directory.mkdir(parents=True)
            except FileExistsError:
                attempt += 1
                continue
            log = RunLog(directory)
            log.keep("started")
            return log

    def say(self, line: str) -> None:
        """A line on stderr and in the log; control characters of strangers were escaped before."""
        print(line, file=sys.stderr, flush=True)
        self.keep(line)

    def keep(self, line: str) -> None:
        """A line in the log."""
        with (self.directory / LOG).open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now(UTC):%H:%M:%S} {line}\n")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Keeps the error that ends its block."""
        try:
            yield
        except (ValueError, OSError, ArithmeticError, KeyboardInterrupt) as error:
            self.keep(f"ended by {type(error).__name__}: {error}")
            raise

    def status(self, **fields: Any) -> None:
        """Replaces status.json."""
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        with new_file(self.directory / STATUS) as partial:
            partial.write_text(json.dumps({"at": now, **fields}, indent=1) + "\n")
