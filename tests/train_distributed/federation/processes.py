"""A federation of plain processes on loopback, without images: quick to start, easy to kill.

python processes.py FOLDER PARTY ADDRESS PATIENCE JOURNALS: PARTY is user0, user1, ..., whose vector
is drawn from its number; "crowd": all of them, in threads; or "operator": at ADDRESS.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ports import free_port
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.attendance import Attendance, alone, attend
from train_distributed.federation.documents.certificates import SERVER, serving, write_certificate
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.documents.private_keys import read_private, write_party
from train_distributed.federation.documents.sessions import party_state
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.flower_app.party import UNIX, NodeLine
from train_distributed.federation.operation import Operation, operate
from train_distributed.federation.record import settle
from train_distributed.secure_sum.journal import DurableJournal, Journal


class Field:
    """Keys, certificates and the agreement of a federation, and its running processes."""

    def __init__(self, folder: Path, users: int, seconds: float = 40, **changes: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.users = [f"user{i}" for i in range(users)]
        (folder / "tls").mkdir()
        write_certificate(folder / "tls", ["127.0.0.1"])
        parties = [folder / party for party in [*self.users, "server0"]]
        *public, server = [Keys.of(write_party(party).public) for party in parties]
        fields: dict[str, Any] = {"version": 3, "protocol": "secagg", "dimension": 50}
        fields |= {"minimum": users - 1, "servers": (server,)}
        fields |= {"users": {user: keys.verifying for user, keys in enumerate(public)}}
        fields |= {"deadlines": Deadlines(come=float(seconds), answer=float(seconds))}
        self.federation = Federation(**(fields | changes))
        self.federation.save(folder / "federation.json")
        self.running: list[subprocess.Popen[bytes]] = []
        self.latest: dict[str, subprocess.Popen[bytes]] = {}

    def node(
        self, party: str, patience: float = 600, journals: str = "journals", address: str = ""
    ) -> subprocess.Popen[bytes]:
        root = str(Path(__file__).parents[3])
        environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
        given = [self.folder, party, address or f"127.0.0.1:{self.port}", patience, journals]
        command = [sys.executable, "-W", "ignore", __file__, *map(str, given)]
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


def plain_vector(identity: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(identity).integers(0, 2**64, dimension, np.uint64)


def attendance(folder: Path, user: int, journal: Journal, address: str, **more: Any) -> Attendance:
    federation = Federation.load(folder / "federation.json")
    keys = read_private(folder / f"user{user}")
    vector = plain_vector(user, federation.dimension)
    return Attendance(
        endpoint=UserEndpoint(federation, user, keys, lambda: vector, journal),
        federation=federation,
        party=user,
        keys=keys,
        address=address,
        certificates=folder / "tls" / SERVER,
        **more,
    )


def crowd(folder: Path, address: str) -> int:
    federation, start = Federation.load(folder / "federation.json"), time.monotonic()
    parties = [attendance(folder, u, VolatileJournal(), address) for u in federation.users]
    threads = [threading.Thread(target=attend, args=(party,), daemon=True) for party in parties]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"crowd: {time.monotonic() - start:.1f} s, of them {time.process_time():.1f} CPU s")
    return 0


def node(folder: Path, party: str, address: str, patience: float, journals: str) -> int:
    federation = Federation.load(folder / "federation.json")
    state = party_state(federation.digest, party, folder / journals)
    journal, user = DurableJournal(state), int(party.removeprefix("user"))
    journal.check()
    at = attendance(folder, user, journal, address, patience=patience)
    with alone(state):
        return attend(at, NodeLine(at) if address.startswith(UNIX) else None)


def operator(folder: Path, address: str) -> int:
    operation = Operation(
        federation=Federation.load(folder / "federation.json"),
        keys=read_private(folder / "server0"),
        tls=serving(folder / "tls", folder / "tls" / SERVER),
        host="127.0.0.1",
        port=int(address.rpartition(":")[2]),
        state=folder / "state",
        run=folder / "run",
        ready=lambda: (folder / "ready").touch(),
    )
    try:
        (opened,), _ = operate(operation)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    np.savez(folder / "opened.npz", total=opened.total, users=sorted(opened.users))
    settle(operation.state)
    return 0


def main(folder: str, party: str, address: str, patience: str, journals: str) -> int:
    if party in ("crowd", "operator"):
        return {"crowd": crowd, "operator": operator}[party](Path(folder), address)
    return node(Path(folder), party, address, float(patience), journals)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
