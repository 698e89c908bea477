"""Duties of every endpoint: prove presence, begin and end sessions, repeat an answer exactly.

An answer that was given is kept until its session ends, and an identical request gets it again: so
an operator that was killed can ask again, and learns nothing that it was not told before.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import IntEnum

from train_distributed.flower.blobs import join
from train_distributed.flower.documents.federation import Federation, name_of
from train_distributed.flower.orders import NONCE_BYTES, PRESENT_BYTES, read_order, write_presence
from train_distributed.secure_sum.errors import MalformedMessage, OutOfOrder, TooFewUsers
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.wire import OVERHEAD


class Request(IntEnum):
    """Requests of the relay; PRESENT, START, END are signed by the operator (`orders.py`)."""

    START = 0  # a session begins; answer: a user's first messages
    DELIVER = 1  # body: messages for this party; answer: its messages, or refusals in words
    PRESENT = 5  # who is here? answer: a signed name
    END = 6  # a session is over
    ROUND = 10  # a further round begins, at these weights (`round_endpoint.py`), signed as well


DONE, REFUSED = b"\0", b"\1"
KEPT = 8  # answers of a session, in the longest that one may be: no protocol here has more
_ITEM = len(join([b""])) - len(join([]))  # bytes that a list adds to each of its items
Handlers = Mapping[Request, Callable[[bytes], list[bytes]]]


class RequestHandler(ABC):
    """One party's endpoint without its protocol.

    Raises:
        ValueError: keys that are not those of that party.
    """

    def __init__(
        self, federation: Federation, party: int, keys: PrivateKeys, journal: Journal
    ) -> None:
        if federation.verifying_key(party) != keys.public.verifying:
            raise ValueError(f"keys must be those that the federation lists for {name_of(party)}")
        self._federation, self._party = federation, party
        self._keys, self._journal = keys, journal
        self._nonce: bytes | None = None  # of the session under way
        self._given: dict[bytes, bytes] = {}  # hash of a request of that session -> the answer
        self._kept = 0  # bytes of those answers
        self.over = False  # nothing more will be asked of this party
        self.largest_frame = federation.largest_frame
        self.poll_seconds = federation.poll_seconds(party)

    def answer(self, request: bytes) -> bytes:
        """The answer to one request; a refusal is an answer."""
        name = hashlib.sha256(request).digest()
        if name in self._given:
            return self._given[name]
        try:
            kind, body = _split(request)
            answer = DONE + join(self._act(kind, body))
        except (ValueError, OSError) as error:  # OSError: the journal's disk
            return REFUSED + words(error).encode(errors="replace")
        if kind not in (Request.PRESENT, Request.END):
            self._given[name] = answer
            self._kept += len(answer)
        return answer

    @abstractmethod
    def _handlers(self) -> Handlers:
        """Handlers of the protocol's requests, once a session is under way."""

    @abstractmethod
    def _start(self, nonce: bytes) -> list[bytes]:
        """Begins a session; this party's first messages."""

    @abstractmethod
    def _willing(self, nonce: bytes) -> bool:
        """Whether this party can take part in the session with this nonce."""

    @abstractmethod
    def _last(self, opened: bool) -> bool:
        """Whether the session that has ended was this party's last; forgets it."""

    def _act(self, kind: Request, body: bytes) -> list[bytes]:
        if kind == Request.PRESENT:
            return [self._present(body)]
        if kind == Request.START:
            return self._begin(body)
        if kind == Request.END:
            return self._end(body)
        handlers = self._handlers()
        if kind not in handlers:
            raise MalformedMessage(f"request must be one of {sorted(handlers)}, got {kind.name}")
        if self._nonce is None:
            raise OutOfOrder("START must come first")
        if self._kept > KEPT * self.largest_frame:
            raise OutOfOrder(f"answers of a session must be fewer, got {self._kept} bytes of them")
        return handlers[kind](body)

    def _present(self, signed: bytes) -> bytes:
        order = read_order(self._federation, Request.PRESENT, signed, PRESENT_BYTES)
        nonce = order[NONCE_BYTES : 2 * NONCE_BYTES]
        willing = nonce == self._nonce or self._willing(nonce)
        return write_presence(self._federation, order, self._party, willing, self._keys)

    def _begin(self, signed: bytes) -> list[bytes]:
        federation = self._federation
        sets = (len(federation.users) + 7) // 8
        order = read_order(federation, Request.START, signed, NONCE_BYTES + sets)
        nonce = order[:NONCE_BYTES]
        session = federation.session(nonce)
        users = session.users_of(order[NONCE_BYTES:])
        if len(users) < federation.minimum:
            raise TooFewUsers(f"users present must be >= {federation.minimum}, got {len(users)}")
        if self._party not in users:
            raise OutOfOrder(f"users present must include {name_of(self._party)}")
        if nonce == self._nonce:
            raise OutOfOrder("START must come once per session, came with other users")
        first = self._start(nonce)
        self._nonce, self._given, self._kept = nonce, {}, 0
        return first

    def _end(self, signed: bytes) -> list[bytes]:
        order = read_order(self._federation, Request.END, signed, NONCE_BYTES + 1)
        if order[:NONCE_BYTES] != self._nonce:
            raise OutOfOrder("END must be of the session under way")
        self._nonce, self._given, self._kept = None, {}, 0
        self.over = self._last(bool(order[NONCE_BYTES]))
        return []


def answer_bytes(*payloads: int, overhead: int = OVERHEAD) -> int:
    """The longest answer that carries messages with such payloads, and so much around each."""
    return len(DONE) + len(join([])) + sum(_ITEM + overhead + payload for payload in payloads)


def words(error: Exception) -> str:
    """An error as it is reported: its name and what it says."""
    return f"{type(error).__name__}: {error}"


def _split(request: bytes) -> tuple[Request, bytes]:
    try:
        return Request(request[0]), request[1:]
    except (ValueError, IndexError) as error:
        raise MalformedMessage(f"request must be a known one, got {request[:1]!r}") from error
