"""A user's endpoint: requests from the relay in, answers out. Keys and data never leave it.

The relay is not trusted: everything that matters in a request is a signed message of the secure
sum, or an order that the operator has signed. An answer that was given is kept until its session
ends, and an identical request gets it again: so an operator that was killed can ask again, and
learns nothing that it was not told before.
"""

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.sessions import (
    free_session,
    no_session_left,
    spend_session,
)
from train_distributed.federation.orders import (
    DONE,
    NONCE_BYTES,
    PRESENT_BYTES,
    REFUSED,
    Request,
    join,
    read_order,
    split,
    words,
    write_presence,
)
from train_distributed.secure_sum.errors import (
    AlreadyOpened,
    MalformedMessage,
    OutOfOrder,
    TooFewUsers,
)
from train_distributed.secure_sum.graph import STARTS
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys, name_of
from train_distributed.secure_sum.secagg_user import SecAggUser

SIGNED = "signed"  # step of the journal: of the one vector of a federation with one session
KEPT = 8  # answers of a session, in the longest that one may be: the protocol has no more
Submission = Callable[[], NDArray[np.uint64]]  # trains, rounds, adds noise: called once a session


class Endpoint(Protocol):
    """Whoever answers the relay."""

    @property
    def over(self) -> bool:
        """Whether nothing more will be asked."""
        ...

    @property
    def largest_frame(self) -> int:
        """Bytes that a request or an answer may have."""
        ...

    def answer(self, request: bytes) -> bytes:
        """Never raises for what is in the request."""
        ...


class UserEndpoint:
    """Submits one vector per session, in as many sessions as were agreed.

    Where one session was agreed, a vector may be masked again in another session of `secagg`, as
    after the fault of a user that is then left out, if this user has not signed a set of survivors:
    any two quorums of signers share an honest user, which signs once, so one sum is opened at most.

    Args:
        federation: what was agreed.
        party: whose endpoint it is.
        keys: its own.
        submission: draws the vector.
        journal: of the party, durable.

    Raises:
        ValueError: keys that are not those of that party.
    """

    def __init__(
        self,
        federation: Federation,
        party: int,
        keys: PrivateKeys,
        submission: Submission,
        journal: Journal,
    ) -> None:
        if federation.verifying_key(party) != keys.public.verifying:
            raise ValueError(f"keys must be those that the federation lists for {name_of(party)}")
        self._federation, self._party = federation, party
        self._keys, self._journal, self._submission = keys, journal, submission
        self._user: SecAggUser | None = None
        self._drawn: NDArray[np.uint64] | None = None  # masked, in no session that was signed
        self._forget(None)
        self.over = False  # nothing more will be asked of this party
        self.largest_frame = federation.largest_frame

    def answer(self, request: bytes) -> bytes:
        """The answer to one request; a refusal is an answer."""
        name = hashlib.sha256(request).digest()
        if name in self._given:
            return self._given[name]
        try:
            answer = DONE + join(self._act(request[:1], request[1:]))
        except (ValueError, OSError) as error:  # OSError: the journal's disk
            return REFUSED + words(error).encode(errors="replace")
        if request[0] not in (Request.PRESENT, Request.END):
            self._given[name] = answer
            self._kept += len(answer)
        return answer

    def _forget(self, nonce: bytes | None) -> None:
        """Has this session under way, and no answers of another one."""
        self._nonce = nonce
        self._given: dict[bytes, bytes] = {}  # hash of a request of that session -> the answer
        self._kept = 0  # bytes of those answers

    def _act(self, kind: bytes, body: bytes) -> list[bytes]:
        acts: dict[int, Callable[[bytes], list[bytes]]] = {
            Request.PRESENT: self._present,
            Request.START: self._start,
            Request.DELIVER: self._deliver,
            Request.END: self._end,
        }
        if not kind or kind[0] not in acts:
            raise MalformedMessage(f"request must be one of {sorted(acts)}, got {kind!r}")
        if kind[0] == Request.DELIVER and self._kept > KEPT * self.largest_frame:
            raise OutOfOrder(f"answers of a session must be fewer, got {self._kept} bytes of them")
        return acts[kind[0]](body)

    def _present(self, signed: bytes) -> list[bytes]:
        order = read_order(self._federation, Request.PRESENT, signed, PRESENT_BYTES)
        willing = self._can_submit or order[NONCE_BYTES : 2 * NONCE_BYTES] == self._nonce
        return [write_presence(self._federation, order, self._party, willing, self._keys)]

    @property
    def _signed(self) -> bool:
        """Whether a sum of the one vector that was drawn may have been opened."""
        in_memory = self._user is not None and self._user.agreed
        return in_memory or self._journal.detail(self._federation.digest, SIGNED) is not None

    @property
    def _can_submit(self) -> bool:
        if self._drawn is not None and not self._signed:
            return True
        return free_session(self._journal, self._federation) is not None

    def _start(self, signed: bytes) -> list[bytes]:
        federation = self._federation
        sets = (len(federation.users) + 7) // 8
        order = read_order(federation, Request.START, signed, NONCE_BYTES + sets)
        nonce = order[:NONCE_BYTES]
        setup = federation.secagg(nonce)
        users = setup.session.users_of(order[NONCE_BYTES:])
        if len(users) < federation.minimum:
            raise TooFewUsers(f"users present must be >= {federation.minimum}, got {len(users)}")
        if self._party not in users:
            raise OutOfOrder(f"users present must include {name_of(self._party)}")
        if nonce == self._nonce:
            raise OutOfOrder("START must come once per session, came with other users")
        self._leave()
        if not self._can_submit:
            raise no_session_left(federation)
        self._count_start(nonce)
        self._user = SecAggUser(
            setup, self._party, self._keys, lambda: self._vector(nonce), self._journal
        )
        first = self._user.start()
        self._forget(nonce)
        return [first]

    def _deliver(self, body: bytes) -> list[bytes]:
        if self._user is None:
            raise OutOfOrder("START must come first")
        answers, signed = list[bytes](), self._user.agreed
        for message in split(body):
            answers.append(self._user.receive(message))
            if self._user.agreed and not signed and self._drawn is not None:
                signed = True  # and its vector: in no other session, whatever memory is put back
                self._journal.claim(self._federation.digest, SIGNED, self._nonce or b"")
        return answers

    def _end(self, signed: bytes) -> list[bytes]:
        order = read_order(self._federation, Request.END, signed, NONCE_BYTES + 1)
        if order[:NONCE_BYTES] != self._nonce:
            raise OutOfOrder("END must be of the session under way")
        self._forget(None)
        self._leave()
        if order[NONCE_BYTES]:  # the sum was opened
            self._drawn = None
        self.over = not self._can_submit
        return []

    def _leave(self) -> None:
        """Signs nothing more in the session under way."""
        if self._user is not None and self._user.agreed:
            self._drawn = None
        self._user = None

    def _vector(self, nonce: bytes) -> NDArray[np.uint64]:
        """Uses up one of the agreed sessions, then draws the noise that it is accounted for with.

        Returns:
            (d,) uint64; the one drawn before, if no session that this user signed has used it.

        Raises:
            AlreadyOpened: there is none left.
        """
        if self._drawn is not None and not self._signed:
            return self._drawn
        federation = self._federation
        spend_session(self._journal, federation, nonce)
        vector = self._submission()
        if federation.sessions == 1:
            self._drawn = vector
        return vector

    def _count_start(self, nonce: bytes) -> None:
        """Notes a start, of which the operator may not have so many that it can pick a graph.

        Raises:
            AlreadyOpened: all have been used, or this session was started before: by a process that
                is gone, and whose answers cannot be given again.
        """
        most, digest = STARTS * self._federation.sessions, self._federation.digest
        for place in range(most):
            name = f"start{place}"
            found = self._journal.detail(digest, name)
            if found == nonce:
                raise AlreadyOpened("session must be a new one, got one this user has started")
            if found is None:
                return self._journal.claim(digest, name, nonce)
        raise AlreadyOpened(f"sessions started must be <= {most}, got one more")
