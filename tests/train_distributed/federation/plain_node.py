"""A party without images: its vector is drawn from its number. Run as a process by the tests.

python plain_node.py FOLDER PARTY PORT PATIENCE JOURNALS; PARTY is user0, user1, ...; PORT may be
unix:PATH.
"""

import sys
from pathlib import Path

import numpy as np

from train_distributed.federation.attendance import Attendance, alone, attend
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import party_state
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.flower_app.party import UNIX, NodeLine
from train_distributed.secure_sum.journal import DurableJournal


def plain_vector(identity: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(identity).integers(0, 2**64, dimension, np.uint64)


def main() -> int:
    folder, party = Path(sys.argv[1]), sys.argv[2]
    federation, keys = Federation.load(folder / "federation.json"), read_private(folder / party)
    state = party_state(federation.digest, party, folder / sys.argv[5])
    journal = DurableJournal(state)
    journal.check()
    user = int(party.removeprefix("user"))
    vector = plain_vector(user, federation.dimension)
    address = sys.argv[3] if sys.argv[3].startswith(UNIX) else f"127.0.0.1:{sys.argv[3]}"
    attendance = Attendance(
        endpoint=UserEndpoint(federation, user, keys, lambda: vector, journal),
        federation=federation,
        party=user,
        keys=keys,
        address=address,
        certificates=folder / "tls" / "server.pem",
        patience=float(sys.argv[4]),
    )
    with alone(state):
        return attend(attendance, NodeLine(attendance) if address.startswith(UNIX) else None)


if __name__ == "__main__":
    sys.exit(main())
