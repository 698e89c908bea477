"""A federation of plain processes on loopback: quick to start, easy to kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.homes import (  # noqa: F401 (fixtures)
    agreed,
    engine,
    initiated,
    joined,
    knowing,
)
from tests.train_distributed.federation.folders.windows import (  # noqa: F401 (fixtures)
    opened,
    windowed,
)
from tests.train_distributed.federation.plain_node import plain_vector
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.private_keys import write_party


class Field:
    """Keys, certificates and the agreement of a federation, and its running processes."""

    def __init__(self, folder: Path, users: int, seconds: float = 40, **changes: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.users = [f"user{i}" for i in range(users)]
        (folder / "tls").mkdir()
        write_certificate(folder / "tls", ["127.0.0.1"])
        *public, server = (
            Keys.of(write_party(folder / party).public) for party in [*self.users, "server0"]
        )
        fields: dict[str, Any] = {
            "version": 3,
            "protocol": "secagg",
            "dimension": 50,
            "minimum": users - 1,
            "users": {user: keys.verifying for user, keys in enumerate(public)},
            "servers": (server,),
            "deadlines": Deadlines(come=float(seconds), answer=float(seconds)),
        }
        self.federation = Federation(**(fields | changes))
        self.federation.save(folder / "federation.json")
        self.running: list[subprocess.Popen[bytes]] = []
        self.latest: dict[str, subprocess.Popen[bytes]] = {}

    def node(
        self, party: str, patience: float = 600, journals: str = "journals", address: str = ""
    ) -> subprocess.Popen[bytes]:
        """A process of a user, of all of them ("crowd"), or of the operator."""
        here = Path(__file__)
        environment = os.environ | {"PYTHONPATH": str(here.parents[3]), "OMP_NUM_THREADS": "1"}
        given = [self.folder, party, address or f"127.0.0.1:{self.port}", patience, journals]
        program = [sys.executable, "-W", "ignore", str(here.with_name("plain_node.py"))]
        command = [*program, *map(str, given)]
        with (self.folder / f"{party}.log").open("ab") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        self.running.append(process)
        self.latest[party] = process
        return process

    def nodes(self, **more: Any) -> list[subprocess.Popen[bytes]]:
        return [self.node(party, **more) for party in self.users]

    def operator(self) -> subprocess.Popen[bytes]:
        return self.node("operator")

    def opened(self) -> list[int]:
        """The users in the sum, which must be exact."""
        found = np.load(self.folder / "opened.npz")
        users, dimension = [int(user) for user in found["users"]], self.federation.dimension
        vectors = [plain_vector(user, dimension) for user in users]
        assert np.array_equal(found["total"], np.stack(vectors).sum(0, dtype=np.uint64))
        return users

    def status(self) -> dict[str, Any]:
        try:
            return json.loads((self.folder / "run" / "status.json").read_text())
        except FileNotFoundError:
            return {}

    def wait_for(self, true: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.01)

    def logs(self) -> str:
        texts = {p.name: p.read_text(errors="replace")[-1500:] for p in self.folder.glob("*.log")}
        return "\n".join(f"== {name}\n{text}" for name, text in texts.items())

    def end(self) -> list[str]:
        """Kills what runs; the command lines of our processes that are left."""
        for process in self.running:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        deadline = time.monotonic() + 20
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left

    def left(self) -> list[str]:
        """Processes of this federation, by its folder."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if str(self.folder) in line and state != "Z":
                found.append(line)
        return found


@pytest.fixture
def make_field(tmp_path: Path) -> Iterator[Callable[..., Field]]:
    fields: list[Field] = []

    def make(users: int = 5, **changes: Any) -> Field:
        folder = tmp_path / f"field{len(fields)}"
        folder.mkdir()
        fields.append(Field(folder, users, **changes))
        return fields[-1]

    yield make
    left = [line for field in fields for line in field.end()]
    assert not left
