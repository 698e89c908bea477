"""A party's endpoint in a federation of several rounds: which one is under way, at which weights.

    ROUND   chain 32 | number u32 | weights or centre, float64      signed by the operator

The first sum is a session like any other. A further round is a session of the federation `at` that
round: its digest holds number, chain and weights, so a sum is of users that were shown the same
ones. What a round costs is in the one entry of the first sum, whichever weights it is at.

A user is asked by an operator that it does not trust, so what it answers is bounded by its journal
alone. With S agreed sessions it takes part in each of the rounds 1 … T in S chains at most, of a
chain at one set of weights, in a round once; and before the vector of its k-th such round is drawn,
k sessions are spent, with all that their entry in the ledger counts. So whatever is asked, S
sessions of 1 + T sums each cover it.
"""

import hashlib
import struct
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.sessions import free_session, spend_session
from train_distributed.flower.endpoint import Endpoint, Submission, UserEndpoint
from train_distributed.flower.orders import (
    DONE,
    NONCE_BYTES,
    REFUSED,
    Request,
    join,
    read_order,
    words,
    write_order,
)
from train_distributed.secure_sum.errors import AlreadyOpened, MalformedMessage
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys

CHAIN_BYTES = NONCE_BYTES
WORD = np.dtype("<f8")
_ORDERS = [bytes([kind]) for kind in (Request.PRESENT, Request.START, Request.END)]
_NUMBER = struct.Struct(">I")
Rounds = Callable[[NDArray[np.float64]], Submission]  # what was published to what draws a vector


def round_order(
    federation: Federation, chain: bytes, number: int, weights: bytes, keys: PrivateKeys
) -> bytes:
    """The signed request that begins a round; the operator's."""
    body = chain + _NUMBER.pack(number) + weights
    return write_order(federation, Request.ROUND, body, keys)


class RoundsEndpoint:
    """A user's, for the first sum and all further rounds.

    Args:
        federation: what was agreed.
        party: whose endpoint it is.
        keys: its own.
        journal: of the party, durable.
        first: makes what it submits first.
        rounds: makes what it submits at some weights; raises before anything is spent.
    """

    def __init__(
        self,
        federation: Federation,
        party: int,
        keys: PrivateKeys,
        journal: Journal,
        first: Submission,
        rounds: Rounds,
    ) -> None:
        self._federation, self._party = federation, party
        self._keys, self._journal, self._rounds = keys, journal, rounds
        self._base = self._endpoint(federation, first)
        self._now: Endpoint = self._base
        self._under_way: tuple[int, bytes, bytes] | None = None
        self.largest_frame = self._base.largest_frame
        self.poll_seconds = self._base.poll_seconds

    @property
    def over(self) -> bool:
        """Whether the last round of the last chain has ended."""
        if self._under_way is None or self._under_way[0] < self._federation.rounds:
            return False
        return self._now.over and self._count(self._federation.rounds) >= self._federation.sessions

    def answer(self, request: bytes) -> bytes:
        """A ROUND is answered here, the rest by the endpoint of the round under way."""
        if request[:1] != bytes([Request.ROUND]):
            return self._answer(request)
        try:
            self._begin(request[1:])
        except (ValueError, OSError) as error:
            return REFUSED + words(error).encode(errors="replace")
        return DONE + join([])

    def _answer(self, request: bytes) -> bytes:
        answer = self._now.answer(request)
        if answer[:1] != REFUSED or self._now is self._base or request[:1] not in _ORDERS:
            return answer
        first = self._base.answer(request)  # of the next chain, perhaps: orders name a federation
        if first[:1] != DONE:
            return answer
        if request[:1] == bytes([Request.START]):
            self._now, self._under_way = self._base, None
        return first

    def _begin(self, signed: bytes) -> None:
        federation = self._federation
        size = CHAIN_BYTES + _NUMBER.size + WORD.itemsize * federation.published
        order = read_order(federation, Request.ROUND, signed, size)
        chain, weights = order[:CHAIN_BYTES], order[CHAIN_BYTES + _NUMBER.size :]
        (number,) = _NUMBER.unpack_from(order, CHAIN_BYTES)
        if not 1 <= number <= federation.rounds:
            raise MalformedMessage(
                f"round must be from 1 to {federation.rounds} as agreed, got {number}"
            )
        if self._under_way == (number, chain, weights):
            return
        drawn = self._rounds(np.frombuffer(weights, WORD).astype(np.float64))
        self._claim(number, chain, weights)
        at = federation.at(number, chain, weights)
        self._now = self._endpoint(at, lambda: self._paid(number, drawn))
        self._under_way = (number, chain, weights)

    def _endpoint(self, federation: Federation, submission: Submission) -> Endpoint:
        return UserEndpoint(federation, self._party, self._keys, submission, self._journal)

    def _claim(self, number: int, chain: bytes, weights: bytes) -> None:
        """Notes at which weights of which chain a round is, before it begins.

        Raises:
            AlreadyOpened: the chain's round was at other weights, or it is one chain too many.
        """
        told = chain + hashlib.sha256(weights).digest()
        for place in range(self._federation.sessions):
            name = f"round{number}.{place}"
            known = self._journal.detail(self._federation.digest, name)
            if known is None:
                return self._journal.claim(self._federation.digest, name, told)
            if known == told:
                return None
            if known[:CHAIN_BYTES] == chain:
                raise AlreadyOpened(
                    f"round {number} must be at the weights published for it, is at others"
                )
        raise AlreadyOpened(
            f"sessions must be <= {self._federation.sessions}, got round {number} of one more"
        )

    def _paid(self, number: int, drawn: Submission) -> NDArray[np.uint64]:
        """Spends as many sessions as this round has chains, then draws: most are spent already."""
        federation, journal = self._federation, self._journal
        needed = min(self._count(number), federation.sessions)
        while (free := free_session(journal, federation)) is not None and free < needed:
            spend_session(journal, federation, b"")
        return drawn()

    def _count(self, number: int) -> int:
        """Chains whose round of this number has begun."""
        names = (f"round{number}.{place}" for place in range(self._federation.sessions))
        digest = self._federation.digest
        return sum(self._journal.detail(digest, name) is not None for name in names)
