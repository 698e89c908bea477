"""Endpoints at numbered nodes, without processes: node 10 + i is user i."""

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from tests.ports import free_port
from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.federation.attendance import Attendance
from train_distributed.federation.connections import Operator
from train_distributed.federation.coordinator import coordinate
from train_distributed.federation.documents.certificates import serving, write_certificate
from train_distributed.federation.documents.federation import Deadlines, Federation
from train_distributed.federation.documents.party import Keys
from train_distributed.federation.endpoint import UserEndpoint
from train_distributed.federation.orders import REFUSED, Request, write_order
from train_distributed.federation.polling import open_relay
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog
from train_distributed.secure_sum.journal import DurableJournal, Journal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.opening import Opened

W, D = 5, 7
ALL = frozenset(range(W))
KEYS = {n: PrivateKeys.generate() for n in [*range(W), FIRST_SERVER]}
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)


class Killed(BaseException):
    """Like the end of the process: nobody catches it."""


def agreement(**changes: Any) -> Federation:
    fields: dict[str, Any] = {"version": 3, "protocol": "secagg", "dimension": D, "minimum": 3}
    fields |= {"users": {i: KEYS[i].public.verifying.hex() for i in range(W)}}
    fields |= {"servers": (Keys.of(KEYS[FIRST_SERVER].public),)}
    fields |= {"deadlines": Deadlines(come=0.0, again=0.0)}
    return Federation(**(fields | changes))


def order(federation: Federation, kind: Request, body: bytes, signer: int = FIRST_SERVER) -> bytes:
    return write_order(federation, kind, body, KEYS[signer])


def start(
    federation: Federation, nonce: bytes = b"n" * 32, users: Iterable[int] = ALL, **signer: int
) -> bytes:
    body = nonce + federation.session(nonce).bitmap(users)
    return order(federation, Request.START, body, **signer)


class FakeRelay:
    """Users whose journals outlive their endpoints."""

    def __init__(
        self, federation: Federation | None = None, journals: Callable[[int], Journal] | None = None
    ) -> None:
        self.federation, volatile = federation or agreement(), dict[int, Journal]()
        self.journals = journals or (lambda user: volatile.setdefault(user, VolatileJournal()))
        self.drawn = Counter[Any]()
        self.endpoints: dict[int, Any] = {10 + i: self.user(i) for i in range(W)}
        self.asked = Counter[int]()
        self.dies_at: dict[int, int] = {}  # node -> requests that it answers
        self.spare()

    def spare(self) -> None:
        """Nothing is done to questions and answers any more."""
        self.garble: Callable[[int, bytes, bytes], bytes | None] = lambda node, asked, got: got
        self.before: Callable[[int, bytes], Any] = lambda node, request: None
        self.after: Callable[[int, bytes, bytes], Any] = lambda node, request, answer: None

    def user(self, user: int) -> Any:
        def draw() -> np.ndarray:
            self.drawn[user] += 1
            return VECTORS[user]

        return UserEndpoint(self.federation, user, KEYS[user], draw, self.journals(user))

    def nodes(self) -> list[int]:
        return [*self.endpoints]

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        for node, request in requests.items():
            assert len(request) <= self.federation.largest_frame
            if node not in self.endpoints or self.asked[node] >= self.dies_at.get(node, 1000):
                continue
            self.asked[node] += 1
            self.before(node, request)
            answer = self.garble(node, request, self.endpoints[node].answer(request))
            if answer is not None:
                self.after(node, request, answer)
                yield node, answer


class Wrapped:
    """An endpoint whose answers are changed: `change(request, plain)`; `plain()` is its answer."""

    over, largest_frame = False, 10**7

    def __init__(
        self, endpoint: Any, change: Callable[[bytes, Callable[[], bytes]], bytes]
    ) -> None:
        self.endpoint, self.change = endpoint, change

    def answer(self, request: bytes) -> bytes:
        return self.change(request, lambda: self.endpoint.answer(request))


def refusing(endpoint: Any, refuses: Callable[[bytes], bool]) -> Wrapped:
    return Wrapped(endpoint, lambda asked, plain: REFUSED + b"away" if refuses(asked) else plain())


def in_thread(work: Callable[..., Any], *given: Any) -> threading.Thread:
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    return thread


def snapshot(endpoint: UserEndpoint) -> UserEndpoint:
    """The endpoint as its memory is now; its journal goes on."""
    made = copy.copy(endpoint)
    made._user, made._given = copy.copy(endpoint._user), dict(endpoint._given)
    if made._user is not None:
        made._user._survivor_check = copy.copy(made._user._survivor_check)
    return made


@contextmanager
def operator(
    relay: Any, log: Log, state: Path | None = None, journal: Journal | None = None
) -> Iterator[Operator]:
    """Whoever asks over a relay; its state is forgotten unless it has a place."""
    with TemporaryDirectory() as home, SessionLog(state or Path(home)) as record:
        durable = DurableJournal(state / "journal") if state else VolatileJournal()
        yield Operator(
            federation=relay.federation,
            keys=KEYS[FIRST_SERVER],
            journal=journal or durable,
            relay=relay,
            record=record,
            log=log,
        )


def operate(
    relay: Any,
    log: Log | None = None,
    state: Path | None = None,
    journal: Journal | None = None,
    *,
    run: Callable[[Operator], Opened] = coordinate,
) -> set[int]:
    """The users whose sum one session opens, which must be exact."""
    with operator(relay, log or Log(), state, journal) as asking:
        opened = run(asking)
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    return set(opened.users)


class Site:
    """An operator's certificate and port on loopback, its service, and parties of it."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.folder, self.port, self.said = folder, free_port(), list[str]()
        self.federation = agreement(**changes)
        write_certificate(folder, ["127.0.0.1"])

    def relay(self) -> Any:
        tls = serving(self.folder, self.folder / "server.pem")
        return open_relay(self.federation, tls, "127.0.0.1", self.port)

    def party(self, endpoint: Any, user: int = 1, **changes: Any) -> Attendance:
        given: dict[str, Any] = {"endpoint": endpoint, "federation": self.federation, "party": user}
        given |= {"keys": KEYS[user], "address": f"127.0.0.1:{self.port}", "say": self.said.append}
        given |= {"certificates": self.folder / "server.pem"}
        return Attendance(**(given | changes))
