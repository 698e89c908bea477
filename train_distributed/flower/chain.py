"""The operator's further rounds: what was opened and published so far, on its disk.

Weights reach the disk before any party is shown them, and what a round opened before the next one
is asked for. So an operator that was killed publishes the same weights for the same round again,
and never asks twice for a sum that it has.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pretrain.cli.output import sync_directory
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.round_endpoint import CHAIN_BYTES
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.wire import bytes_to_words, words_to_bytes
from train_distributed.store.database import make_durable
from train_distributed.store.store import Store, read_store

DIRECTORY, FILE = "rounds", "rounds.sqlite"
Publish = Callable[[Sequence[Opened]], bytes]  # sums so far -> the next weights


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
        found, kept = list[Opened](), self._kept()
        while (content := kept.get(f"opened{len(found)}")) is not None:
            found.append(self._read(len(found), content))
        return found

    def weights(self, number: int, publish: Publish) -> bytes:
        """Weights published for a round: the same ones whenever it is asked for."""
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
        content = self._kept().get(name)
        if content is None:
            content = make()
            with Store(self._directory / FILE, "record of rounds") as store:
                store.claim(name, content)
        return content

    def _kept(self) -> dict[str, bytes]:
        """All that was kept, by name; versions before had a file for each."""
        files = [path for path in self._directory.iterdir() if path.name.isalnum()]
        kept = {path.name: path.read_bytes() for path in files if path.is_file()}
        rows = read_store(self._directory / FILE, "record of rounds")
        return kept | {row.name: row.content for row in rows}


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
