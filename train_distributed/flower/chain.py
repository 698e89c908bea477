"""The operator's further rounds: what was opened and published so far, on its disk.

Weights reach the disk before any party is shown them, and what a round opened before the next one
is asked for. So an operator that was killed publishes the same weights for the same round again,
and never asks twice for a sum that it has.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pretrain.cli.output import new_file
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.round_desk import CHAIN_BYTES
from train_distributed.secure_sum.journal import make_durable, sync_directory
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.wire import bytes_to_words, words_to_bytes

DIRECTORY = "rounds"
Publish = Callable[[Sequence[Opened]], bytes]  # what all sums so far say: the next weights


class Chain:
    """One session's rounds, in a directory of the operator's state.

    Args:
        state: of the operator.
        federation: what was agreed.
    """

    def __init__(self, state: Path, federation: Federation) -> None:
        self._directory, self._federation = state / DIRECTORY, federation
        make_durable(self._directory)
        self.identity = self._once("chain", new_seed)
        if len(self.identity) != CHAIN_BYTES:
            raise ValueError(f"{self._directory} must hold a chain of {CHAIN_BYTES} bytes")

    @property
    def opened(self) -> list[Opened]:
        """The sums so far: of round 0, 1, ..."""
        found = []
        for number in range(1 + self._federation.rounds):
            path = self._directory / f"opened{number}"
            if not path.exists():
                break
            found.append(self._read(number, path.read_bytes()))
        return found

    def weights(self, number: int, publish: Publish) -> bytes:
        """What is published for a round: the same ones whenever it is asked for."""
        return self._once(f"weights{number}", lambda: publish(self.opened))

    def keep(self, number: int, opened: Opened) -> None:
        """Writes a sum down; returns once it has reached the disk."""
        bitmap = self._session(number).bitmap(opened.users)
        self._once(f"opened{number}", lambda: bitmap + words_to_bytes(opened.total))

    def place(self, number: int) -> Path:
        """Directory for the record of a further round's session."""
        return self._directory / f"round{number}"

    def _session(self, number: int):
        federation = self._federation
        if number:
            federation = federation.at(number, self.identity, b"")  # users and sizes are alike
        return federation.session(bytes(32))

    def _read(self, number: int, content: bytes) -> Opened:
        session = self._session(number)
        sets = (len(self._federation.users) + 7) // 8
        return Opened(
            np.array(bytes_to_words(content[sets:], session.dimension)),
            session.users_of(content[:sets]),
        )

    def _once(self, name: str, make: Callable[[], bytes]) -> bytes:
        path = self._directory / name
        if not path.exists():
            with new_file(path) as partial, partial.open("wb") as file:
                file.write(make())
                file.flush()
                os.fsync(file.fileno())
            sync_directory(self._directory)
        return path.read_bytes()


def forget(state: Path) -> None:
    """The rounds of the session that is over: all at once, or the next would go on with the rest.

    Raises:
        OSError: they are still there.
    """
    rounds, over = state / DIRECTORY, state / f"{DIRECTORY}.over"
    shutil.rmtree(over, ignore_errors=True)  # which an earlier process may have left
    if rounds.exists():
        rounds.rename(over)
        sync_directory(state)
        shutil.rmtree(over, ignore_errors=True)
