"""The second of two sums: about the centre that the first one has found (`init --sums 2`).

    CENTRE   the centre, float64      signed by the operator

The first sum is a session like any other. The second one is a session of the federation `at` the
centre, whose digest holds it: so a sum is of users that were shown the same one. What both cost is
in the one entry of the first.

A user is asked by an operator that it does not trust, so what it answers is bounded by its journal
alone. With S agreed sessions it answers at S centres at most, at each of them once; and before the
vector of its k-th centre is drawn, k sessions are spent, with all that their entry in the ledger
counts. So whatever is asked, S sessions of both sums cover it.

An operator's first sum and its centre reach the disk before any party is shown the centre. So one
that was killed publishes the same centre again, and never asks twice for a sum that it has. Where
the second sum fails there is no model, and the next start takes it again at the same centre.
"""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pretrain.cli.output import sync_directory
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.sessions import free_session, spend_session
from train_distributed.federation.endpoint import Endpoint, Submission, UserEndpoint
from train_distributed.federation.orders import DONE, REFUSED, Request, join, read_order, words
from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.session import set_bytes
from train_distributed.secure_sum.wire import bytes_to_words, words_to_bytes
from train_distributed.store.store import Store, make_durable, read_store

WORD = np.dtype("<f8")
DIRECTORY, FILE = "centre", "sums.sqlite"
EncodedAt = Callable[[bytes], NDArray[np.uint64]]  # a centre as published -> vector, no noise
AtCentre = Callable[[bytes], Submission]  # a centre as published -> what draws a vector at it
Publish = Callable[[Opened], bytes]  # the first sum -> the centre
_ORDERS = [bytes([kind]) for kind in (Request.PRESENT, Request.START, Request.END)]


class CentreEndpoint:
    """A user's, for both sums.

    Args:
        federation: what was agreed.
        party: whose endpoint it is.
        keys: its own.
        journal: of the party, durable.
        first: makes what it submits first.
        second: makes what it submits at a centre; raises before anything is spent.
    """

    def __init__(
        self,
        federation: Federation,
        party: int,
        keys: PrivateKeys,
        journal: Journal,
        first: Submission,
        second: AtCentre,
    ) -> None:
        self._federation, self._party = federation, party
        self._keys, self._journal, self._second = keys, journal, second
        self._base = self._endpoint(federation, first)
        self._now: Endpoint = self._base
        self._centre: bytes | None = None  # of the second sum under way
        self.largest_frame = self._base.largest_frame

    @property
    def over(self) -> bool:
        """Whether the second sum of the last session has ended."""
        of_second = self._centre is not None and self._now.over
        return of_second and self._centres >= self._federation.sessions

    def answer(self, request: bytes) -> bytes:
        """A CENTRE is answered here, the rest by the endpoint of the sum under way."""
        if request[:1] != bytes([Request.CENTRE]):
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
        first = self._base.answer(request)  # of the next session, perhaps: orders name a federation
        if first[:1] == DONE and request[:1] == bytes([Request.START]):
            self._now, self._centre = self._base, None
        return first if first[:1] == DONE else answer

    def _begin(self, signed: bytes) -> None:
        federation = self._federation
        size = WORD.itemsize * federation.dimension
        centre = read_order(federation, Request.CENTRE, signed, size)
        if centre == self._centre:
            return
        drawn = self._second(centre)
        self._claim(centre)
        self._now = self._endpoint(federation.at(centre), lambda: self._paid(drawn))
        self._centre = centre

    def _endpoint(self, federation: Federation, submission: Submission) -> Endpoint:
        return UserEndpoint(federation, self._party, self._keys, submission, self._journal)

    def _claim(self, centre: bytes) -> None:
        """Notes a centre before the sum at it begins.

        Raises:
            AlreadyOpened: it is one centre too many.
        """
        told, sessions = hashlib.sha256(centre).digest(), self._federation.sessions
        for place in range(sessions):
            known = self._journal.detail(self._federation.digest, f"centre{place}")
            if known is None:
                self._journal.claim(self._federation.digest, f"centre{place}", told)
            if known in (None, told):
                return
        raise AlreadyOpened(f"sessions must be <= {sessions}, got the centre of one more")

    def _paid(self, drawn: Submission) -> NDArray[np.uint64]:
        """Spends as many sessions as there are centres, then draws: most are spent already."""
        federation, journal = self._federation, self._journal
        needed = self._centres
        while (free := free_session(journal, federation)) is not None and free < needed:
            spend_session(journal, federation, b"")
        return drawn()

    @property
    def _centres(self) -> int:
        """Centres whose sum has begun."""
        names = (f"centre{place}" for place in range(self._federation.sessions))
        digest = self._federation.digest
        return sum(self._journal.detail(digest, name) is not None for name in names)


class OpenedSums:
    """An operator's sums of one session, and their centre, in a directory of its state.

    Args:
        state: of the operator.
        federation: what was agreed.
    """

    def __init__(self, state: Path, federation: Federation) -> None:
        self.directory, self._federation = state / DIRECTORY, federation
        make_durable(self.directory)

    @property
    def opened(self) -> list[Opened]:
        """The sums that were opened: none, the first, or both."""
        session, found, kept = self._federation.session(bytes(32)), list[Opened](), self._kept()
        for number, dimension in enumerate(self._dimensions):
            if (content := kept.get(f"opened{number}")) is not None:
                bitmap, octets = content[: set_bytes(session)], content[set_bytes(session) :]
                total = np.array(bytes_to_words(octets, dimension))
                found.append(Opened(total, session.users_of(bitmap)))
        return found

    def keep(self, number: int, opened: Opened) -> None:
        """Writes a sum, 0 or 1, down; returns once it has reached the disk."""
        bitmap = self._federation.session(bytes(32)).bitmap(opened.users)
        self._claim(f"opened{number}", bitmap + words_to_bytes(opened.total))

    def centre(self, publish: Publish) -> bytes:
        """The centre that is published after the first sum: the same whenever it is asked for."""
        centre = self._kept().get("centre")
        if centre is None:
            centre = publish(self.opened[0])
            self._claim("centre", centre)
        return centre

    @property
    def _dimensions(self) -> tuple[int, int]:
        return self._federation.dimension, self._federation.second_dimension

    def _claim(self, name: str, content: bytes) -> None:
        with Store(self.directory / FILE, "record of sums") as store:
            store.claim(name, content)

    def _kept(self) -> dict[str, bytes]:
        rows = read_store(self.directory / FILE, "record of sums")
        return {row.name: row.content for row in rows}


def forget(state: Path) -> None:
    """The sums of the session that is over: all at once, or the next would go on with the rest.

    Raises:
        OSError: they are still there.
    """
    sums, over = state / DIRECTORY, state / f"{DIRECTORY}.over"
    shutil.rmtree(over, ignore_errors=True)  # which an earlier process may have left
    if sums.exists():
        sums.rename(over)
        sync_directory(state)
        shutil.rmtree(over, ignore_errors=True)
