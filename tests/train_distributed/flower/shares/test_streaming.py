"""The operator and the servers hold a batch of messages, however many users there are."""

import tracemalloc
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from train_distributed.flower import portions
from train_distributed.flower.coordinator import Log, coordinate
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import ComputationEndpoint, Endpoint, UserEndpoint
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER

D = 2**15
VECTOR = np.arange(D, dtype=np.uint64)
BATCH = 16 * 8 * D
KEYS = {n: PrivateKeys.generate() for n in [*range(96), *range(FIRST_SERVER, FIRST_SERVER + 3)]}


class LeavingUsers:
    """Makes a user when it is asked for the first time, forgets it when it has sent its vector."""

    def __init__(self, federation: Federation) -> None:
        self._federation, self._gone = federation, set[int]()
        self._users: dict[int, Endpoint] = {}
        self._servers: dict[int, Endpoint] = {
            1000 + j: ComputationEndpoint(federation, s, KEYS[s], VolatileJournal())
            for j, s in enumerate(sorted(KEYS)[-3:])
            if j
        }
        self.longest_request = self.longest_answer = 0

    def nodes(self) -> dict[int, str]:
        return dict.fromkeys([*self._federation.users, *self._servers], "")

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            if node in self._gone:
                continue
            if node not in self._servers and node not in self._users:
                self._users[node] = UserEndpoint(
                    self._federation, node, KEYS[node], lambda: VECTOR, VolatileJournal()
                )
            answer = (self._servers | self._users)[node].answer(request)
            if node in self._users and len(answer) > 8 * D:
                vars(self._users.pop(node)).clear()  # it may be in a cycle
                self._gone.add(node)
            self.longest_request = max(self.longest_request, len(request))
            self.longest_answer = max(self.longest_answer, len(answer))
            yield node, answer


def _federation(protocol: str, w: int, minimum: int = 2) -> Federation:
    public = [KEYS[s].public for s in sorted(KEYS)[-3:]]
    return Federation(
        protocol=protocol,  # pyright: ignore[reportArgumentType]
        dimension=D,
        minimum=minimum,
        users={i: KEYS[i].public.verifying.hex() for i in range(w)},
        servers=tuple({"verifying": k.verifying.hex(), "sealing": k.sealing.hex()} for k in public),
    )


def _session(protocol: str, w: int) -> tuple[int, LeavingUsers]:
    """Most bytes that operator and servers had at once, and the relay."""
    federation = _federation(protocol, w)
    relay, keys = LeavingUsers(federation), KEYS[FIRST_SERVER]
    tracemalloc.start()
    try:
        opened = coordinate(federation, b"n" * 32, keys, VolatileJournal(), relay, Log())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.array_equal(opened.total, VECTOR * np.uint64(w))
    return peak, relay


@pytest.mark.parametrize("protocol", ["shares", "shares-replicated"])
def test_memory_is_one_batch_however_many_users(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portions, "BATCH_BYTES", BATCH)
    few, _ = _session(protocol, 32)
    many, relay = _session(protocol, 96)
    per_user = (many - few) / 64 / VECTOR.nbytes
    assert per_user < 0.1  # vectors; what is left is the users' own copies of the session
    assert relay.longest_request < BATCH + 20_000
    federation = _federation(protocol, 96)
    assert max(relay.longest_request, relay.longest_answer) <= federation.largest_frame


def test_a_longer_answer_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer has a limit that follows from d, w and S."""
    federation = _federation("shares-replicated", 32)
    relay = LeavingUsers(federation)
    plain, log = relay.ask_each, Log()

    def padded(requests: Mapping[int, bytes], seconds: float | None = None):
        for node, answer in plain(requests, seconds):
            yield node, answer + bytes(10_000 * (node == 7 and len(answer) > 8 * D))

    monkeypatch.setattr(relay, "ask_each", padded)
    coordinate(federation, b"n" * 32, KEYS[FIRST_SERVER], VolatileJournal(), relay, log)
    assert log.missing == {7: "shares"}
    assert any("answer must be <=" in text for text in log.refused)
