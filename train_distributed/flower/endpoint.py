"""A party's endpoint: requests from the relay in, answers out. Keys and data never leave it.

A request is one byte (what to do) and a body; an answer is one byte (done or refused) and a body: a
list of messages, or the refusal in words. The relay is not trusted: everything that matters in a
body is a signed message of the secure sum, or an order that the operator has signed.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from train_distributed.flower.blobs import split
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.sessions import free_session, no_session_left, spend_session
from train_distributed.flower.request_handler import (
    DONE,
    REFUSED,
    Handlers,
    Request,
    RequestHandler,
    words,
)
from train_distributed.secure_sum.errors import AlreadyOpened, OutOfOrder
from train_distributed.secure_sum.graph import STARTS
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.secagg_user import SecAggUser

__all__ = ["DONE", "REFUSED", "Endpoint", "Request", "UserEndpoint", "words"]

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

    @property
    def poll_seconds(self) -> float:
        """Between looks for a request."""
        ...

    def answer(self, request: bytes) -> bytes:
        """Never raises for what is in the request."""
        ...


class UserEndpoint(RequestHandler):
    """A user's: submits one vector per session, in as many sessions as were agreed.

    Where one session was agreed, a vector may be masked again in another session of `secagg`, as
    after the fault of a user that is then left out, if this user has not signed a set of survivors:
    any two quorums of signers share an honest user, which signs once, so one sum is opened at most.
    """

    def __init__(
        self,
        federation: Federation,
        identity: int,
        keys: PrivateKeys,
        submission: Submission,
        journal: Journal,
    ) -> None:
        super().__init__(federation, identity, keys, journal)
        self._submission = submission
        self._user: SecAggUser | None = None
        self._drawn: NDArray[np.uint64] | None = None  # masked, in no session that was signed

    def _handlers(self) -> Handlers:
        return {Request.DELIVER: self._deliver}

    def _willing(self, nonce: bytes) -> bool:
        return self._can_submit

    @property
    def _can_submit(self) -> bool:
        unsigned = self._user is None or not self._user.agreed
        if unsigned and self._drawn is not None:
            return True
        return free_session(self._journal, self._federation) is not None

    def _start(self, nonce: bytes) -> list[bytes]:
        federation = self._federation
        self._leave()
        if not self._can_submit:
            raise no_session_left(federation)
        if self._journal.detail(federation.session(nonce).digest, "submit") is not None:
            raise AlreadyOpened("session must be a new one, got one this user has taken part in")
        self._count_start(nonce)
        setup = federation.secagg(nonce)
        self._user = SecAggUser(
            setup, self._party, self._keys, lambda: self._vector(nonce), self._journal
        )
        return [self._user.start()]

    def _deliver(self, body: bytes) -> list[bytes]:
        if self._user is None:
            raise OutOfOrder("START must come first")
        return [self._user.receive(message) for message in split(body)]

    def _last(self, opened: bool) -> bool:
        self._leave()
        if opened:
            self._drawn = None
        return not self._can_submit

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
        if self._drawn is not None:
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
            AlreadyOpened: all have been used.
        """
        most, digest = STARTS * self._federation.sessions, self._federation.digest
        for place in range(most):
            name = f"start{place}"
            if self._journal.detail(digest, name) is None:
                return self._journal.claim(digest, name, nonce)
        raise AlreadyOpened(f"sessions started must be <= {most}, got one more")
