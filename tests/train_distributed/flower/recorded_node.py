"""A node with recorded noise, that can kill itself at a stage: run as a process by the tests.

    python recorded_node.py FOLDER PARTY SUPERLINK PATIENCE DIE_AT

PARTY is user0, user1, ...; DIE_AT is the number of the request that is its last.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from embed import EmbeddingSet
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.endpoint import Endpoint, UserEndpoint
from train_distributed.flower.model_task import ModelTask
from train_distributed.flower.supernode import Node, serve
from train_distributed.secure_sum.journal import DurableJournal


def recorded_submission(task: ModelTask, identity: int, embeddings: Path) -> NDArray[np.uint64]:
    """What a user submits, with noise that the tests can make again."""

    def recorded(std: float, count: int) -> NDArray[np.int64]:
        noise = np.random.default_rng(identity).normal(0, std, count)
        return np.rint(noise).astype(np.int64)

    return task.noised(task.encoded(identity, EmbeddingSet.open(embeddings)), recorded)


class MortalEndpoint:
    """Answers some requests, then dies as if the power failed."""

    def __init__(self, endpoint: Endpoint, die_at: int) -> None:
        self._endpoint, self._left = endpoint, die_at
        self.largest_frame, self.poll_seconds = endpoint.largest_frame, endpoint.poll_seconds

    @property
    def over(self) -> bool:
        return self._endpoint.over

    def answer(self, request: bytes) -> bytes:
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        self._left -= 1
        return self._endpoint.answer(request)


def main() -> int:
    folder, party = Path(sys.argv[1]), sys.argv[2]
    superlink, seconds, die_at = sys.argv[3], float(sys.argv[4]), int(sys.argv[5])
    federation = Federation.load(folder / "federation.json")
    keys, journal = read_private(folder / party), DurableJournal(folder / party / "journal")
    identity = int(party.removeprefix("user"))
    task = ModelTask.of(federation, folder / "transform.safetensors")
    sent = recorded_submission(task, identity, folder / party / "embeddings")
    endpoint = UserEndpoint(federation, identity, keys, lambda: sent, journal)
    mortal = MortalEndpoint(endpoint, die_at)
    return serve(Node(mortal, superlink, folder / "tls" / "ca.pem", folder / party, seconds))


if __name__ == "__main__":
    sys.exit(main())
