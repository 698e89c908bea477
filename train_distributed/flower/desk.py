"""A party's desk: requests from the relay in, answers out. Keys and data never leave it.

A request is one byte (what to do) and a body; an answer is one byte (done or refused) and a body: a
list of messages, or the refusal in words. The relay is not trusted: everything that matters in a
body is a signed message of the secure sum.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from train_distributed.flower.blobs import join, split
from train_distributed.flower.federation import Federation
from train_distributed.flower.share_desk import Machine, Submitter, close, receive_all, settle
from train_distributed.secure_sum.errors import AlreadyOpened, MalformedMessage, OutOfOrder
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.prg import SEED_BYTES
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.shares import SeedServer, VectorServer

Submission = Callable[[], NDArray[np.uint64]]  # trains, rounds, adds noise: called once a session


class Request(IntEnum):
    """What the relay may ask."""

    HELLO = 0  # body: nonce; answer: who is here, and a user's first messages (`secagg`)
    DELIVER = 1  # body: messages for this party; answer: its messages, or refusals in words
    CLOSE = 2  # computation server: say whose shares are held; body: messages to take before
    COMMIT = 3  # computation server: sign the set of users
    OPEN = 4  # computation server: open the sum
    NEXT = 8  # user, both kinds of shares; body: number of the portion of its messages, one byte
    SETTLE = 9  # replicated server: end a round; body: lost servers, and the others' messages


DONE, REFUSED = b"\0", b"\1"


class Desk(Protocol):
    """Whoever answers the relay."""

    def answer(self, request: bytes) -> bytes:
        """Never raises for what is in the request."""
        ...


class UserDesk:
    """A user's: submits one vector per session, in as many sessions as were agreed."""

    def __init__(
        self,
        federation: Federation,
        identity: int,
        keys: PrivateKeys,
        submission: Submission,
        journal: Journal,
    ) -> None:
        if federation.users.get(identity) != keys.public.verifying.hex():
            raise ValueError(f"keys must be those that the federation lists for user {identity}")
        self._federation, self._identity, self._keys = federation, identity, keys
        self._submission, self._journal = submission, journal
        self._user: SecAggUser | Submitter | None = None

    def answer(self, request: bytes) -> bytes:
        """The answer to one request; a refusal is an answer."""
        return _answer(
            request,
            {
                Request.HELLO: self._hello,
                Request.DELIVER: self._deliver,
                Request.NEXT: self._next,
            },
        )

    def _hello(self, nonce: bytes) -> list[bytes]:
        name = struct.pack(">I", self._identity)
        federation = self._federation
        if len(nonce) != SEED_BYTES:
            raise MalformedMessage(f"nonce must be {SEED_BYTES} bytes, got {len(nonce)}")
        self._take_ticket(nonce)
        if federation.protocol == "secagg":
            setup, vector = federation.secagg(nonce), self._submission()
            self._user = SecAggUser(setup, self._identity, self._keys, vector, self._journal)
            return [name, self._user.start()]
        self._user = Submitter(
            federation, nonce, self._identity, self._keys, self._journal, self._submission
        )
        return [name]

    def _next(self, number: bytes) -> list[bytes]:
        if not isinstance(self._user, Submitter):
            raise OutOfOrder("NEXT must come after HELLO, to a user of shares")
        return self._user.portion(number)

    def _deliver(self, body: bytes) -> list[bytes]:
        if self._user is None:
            raise OutOfOrder("HELLO must come first")
        if isinstance(self._user, Submitter):
            return self._user.receive(split(body))
        return [self._user.receive(message) for message in split(body)]

    def _take_ticket(self, nonce: bytes) -> None:
        """Uses up one of the agreed sessions, before any noise is drawn."""
        for ticket in range(self._federation.sessions):
            try:
                return self._journal.claim(self._federation.digest, f"session{ticket}", nonce)
            except AlreadyOpened:
                continue
        raise AlreadyOpened(f"sessions must be <= {self._federation.sessions}, got one more")


class ComputationDesk:
    """A computation server's, protocol A with or without replicas."""

    def __init__(
        self, federation: Federation, server: int, keys: PrivateKeys, journal: Journal
    ) -> None:
        self._federation, self._server = federation, server
        self._keys, self._journal = keys, journal
        self._machine: Machine | None = None

    def answer(self, request: bytes) -> bytes:
        """The answer to one request; a refusal is an answer."""
        return _answer(
            request,
            {
                Request.HELLO: self._hello,
                Request.DELIVER: lambda body: receive_all(self._ready, split(body)),
                Request.CLOSE: lambda body: close(self._ready, body),
                Request.COMMIT: lambda _: [self._ready.commit()],
                Request.OPEN: lambda _: [self._ready.open()],
                Request.SETTLE: lambda body: settle(self._ready, body),
            },
        )

    @property
    def _ready(self) -> Machine:
        if self._machine is None:
            raise OutOfOrder("HELLO must come first")
        return self._machine

    def _hello(self, nonce: bytes) -> list[bytes]:
        if len(nonce) != SEED_BYTES:
            raise MalformedMessage(f"nonce must be {SEED_BYTES} bytes, got {len(nonce)}")
        session = self._federation.session(nonce)
        self._journal.claim(session.digest, "serve", b"")
        if self._federation.protocol == "shares-replicated":
            setup = self._federation.replicated(nonce)
            self._machine = ReplicaServer(setup, self._server, self._keys, self._journal)
        else:
            kind = VectorServer if self._server == max(session.servers) else SeedServer
            self._machine = kind(session, self._server, self._keys, self._journal)
        return [struct.pack(">I", self._server)]


def words(error: Exception) -> str:
    """An error as it is reported: its name and what it says."""
    return f"{type(error).__name__}: {error}"


def _answer(request: bytes, handlers: dict[Request, Callable[[bytes], list[bytes]]]) -> bytes:
    try:
        if not request or request[0] not in handlers:
            raise MalformedMessage(
                f"request must be one of {sorted(handlers)}, got {request[:1]!r}"
            )
        return DONE + join(handlers[Request(request[0])](request[1:]))
    except ValueError as error:
        return REFUSED + words(error).encode()
