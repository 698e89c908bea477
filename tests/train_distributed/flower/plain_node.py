"""A party without images: its vector is drawn from its number. Run as a process by the tests.

python plain_node.py FOLDER PARTY PORT PATIENCE; PARTY is user0, user1, ...
"""

import sys
from pathlib import Path

import numpy as np

from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.sessions import party_state
from train_distributed.flower.endpoint import Endpoint, UserEndpoint
from train_distributed.flower.supernode import Node, serve
from train_distributed.secure_sum.journal import DurableJournal


def plain_vector(identity: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(identity).integers(0, 2**64, dimension, np.uint64)


def plain_endpoint(folder: Path, party: str, keys: str | None = None) -> Endpoint:
    federation = Federation.load(folder / "federation.json")
    private = read_private(folder / (keys or party))
    journal = DurableJournal(party_state(federation.digest, party, folder / "journals"))
    journal.check()
    user = int(party.removeprefix("user"))
    vector = plain_vector(user, federation.dimension)
    return UserEndpoint(federation, user, private, lambda: vector, journal)


def main() -> int:
    folder, party = Path(sys.argv[1]), sys.argv[2]
    port, patience = sys.argv[3], float(sys.argv[4])
    keys = folder / (sys.argv[5] if len(sys.argv) > 5 else party)
    endpoint = plain_endpoint(folder, party)
    ca = folder / "tls" / "ca.pem"
    return serve(
        Node(endpoint, f"127.0.0.1:{port}", ca, keys, patience, folder / f"{party}.carrier")
    )


if __name__ == "__main__":
    sys.exit(main())
