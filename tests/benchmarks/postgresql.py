"""A real server of PostgreSQL from the distribution's packages, in a directory of its own."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.ports import free_port

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
if os.geteuid() == 0 and not shutil.which("runuser"):
    BINARIES = []  # root has no other account to start a server as


@dataclass
class Server:
    """Started, stopped as in a power cut, started again."""

    directory: Path
    port: int
    kills: int = 0

    def _as(self, program: str, *command: object) -> str:
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        words = [*user, *map(str, (BINARIES[-1].with_name(program), *command))]
        done = subprocess.run(words, check=True, capture_output=True, cwd=self.directory)
        return done.stdout.decode()

    def initialise(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.directory, "postgres")
        self._as("initdb", "-D", self.directory / "data", "-U", "postgres", "-A", "trust")

    def start(self) -> None:
        options = f"-p {self.port} -h 127.0.0.1 -k {self.directory} -c max_connections=300"
        self._control("-w", "-t", "300", "-l", self.directory / "log", "-o", options, "start")

    def kill(self) -> None:
        """As a power cut; the next start recovers."""
        self._control("-m", "immediate", "stop")
        self.kills += 1

    def _control(self, *words: object) -> None:
        self._as("pg_ctl", "-D", self.directory / "data", *words)

    def asked(self, query: str) -> str:
        """The answer to a query."""
        return self._as("psql", self.url, "-Atc", query).strip()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"


@contextmanager
def running(root: Path | None = None) -> Iterator[Server]:
    """A server below `root`, which the user postgres must be able to read."""
    with tempfile.TemporaryDirectory(prefix="pg-", dir=root) as name:
        directory = Path(name)
        directory.chmod(0o755)
        server = Server(directory, free_port())
        server.initialise()
        server.start()
        try:
            yield server
        finally:
            server.kill()
