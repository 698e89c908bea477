"""Parties without images, and an operator that saves the sum instead of a model, as processes.

python plain_node.py FOLDER PARTY ADDRESS PATIENCE JOURNALS: PARTY is user0, user1, ..., whose
vector is drawn from its number; "crowd": all of them, in threads; or "operator": at ADDRESS.
"""

import sys
import threading
import time
from pathlib import Path

import numpy as np

from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.attendance import Attendance, alone, attend
from train_distributed.federation.documents.certificates import SERVER, serving
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import party_state
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.flower_app.party import UNIX, NodeLine
from train_distributed.federation.operation import Operation, operate
from train_distributed.federation.record import settle
from train_distributed.secure_sum.journal import DurableJournal, Journal


def plain_vector(identity: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(identity).integers(0, 2**64, dimension, np.uint64)


def attendance(
    folder: Path, user: int, journal: Journal, address: str, patience: float = 3600
) -> Attendance:
    federation, keys = (
        Federation.load(folder / "federation.json"),
        read_private(folder / f"user{user}"),
    )
    vector = plain_vector(user, federation.dimension)
    return Attendance(
        endpoint=UserEndpoint(federation, user, keys, lambda: vector, journal),
        federation=federation,
        party=user,
        keys=keys,
        address=address,
        certificates=folder / "tls" / "server.pem",
        patience=patience,
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


def main(folder: Path, party: str, address: str, patience: str = "600", journals: str = "") -> int:
    if party in ("crowd", "operator"):
        return {"crowd": crowd, "operator": operator}[party](folder, address)
    return node(folder, party, address, float(patience), journals)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
