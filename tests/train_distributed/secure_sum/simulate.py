"""All parties of `secagg` in one process: message by message, altered, or measured as a whole."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import AlreadyOpened, ProtocolError
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.packets import Link, write_deal
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.shamir import PRIME, SHARE_BYTES
from train_distributed.secure_sum.wire import Kind, write

ADVERTISE, SHARE_KEYS, MASKED_INPUT, UNMASK = range(4)  # stages at which a user can drop out
T = TypeVar("T")


class VolatileJournal:
    """A `Journal` that forgets when its process ends."""

    def __init__(self) -> None:
        self._claimed: dict[tuple[bytes, str], bytes] = {}

    def claim(self, session: bytes, step: str, detail: bytes) -> None:
        if (session, step) in self._claimed:
            raise AlreadyOpened(f"{step} must happen once per session")
        self._claimed[session, step] = detail

    def detail(self, session: bytes, step: str) -> bytes | None:
        return self._claimed.get((session, step))


@dataclass(frozen=True)
class Signing:
    session: Session
    keys: dict[int, PrivateKeys]  # of users and servers

    def sign(self, kind: Kind, sender: int, receiver: int, payload: bytes) -> bytes:
        """Any message that a party could send."""
        return write(self.session, kind, sender, receiver, payload, self.keys[sender].signing)


@dataclass(frozen=True)
class SecAggParties(Signing):
    setup: SecAgg
    users: list[SecAggUser]
    server: SecAggServer

    def questions(self, kind: Kind) -> Mapping[int, bytes]:
        """User -> the server's message of this kind, all before it being answered."""
        answers = [user.start() for user in self.users]
        while True:
            for answer in answers:
                self.server.receive(answer)
            questions = self.server.advance()
            if questions[0][5] == kind:
                return questions
            answers = [self.users[i].receive(q) for i, q in questions.items()]


def vectors(w: int, d: int) -> NDArray[np.uint64]:
    """(w, d) words, the same for the same sizes."""
    return np.random.default_rng(w * 100_003 + d).integers(0, 2**64, (w, d), np.uint64)


def make_secagg(
    vectors: NDArray[np.uint64],
    *,
    minimum: int = 2,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
    keys: dict[int, PrivateKeys] | None = None,
    nonce: bytes | None = None,
    exclude: Collection[int] = (),
) -> SecAggParties:
    """The parties of a session: a user for every row of the vectors, and the server."""
    w = len(vectors)
    keys = keys or {party: PrivateKeys.generate() for party in [*range(w), SERVER]}
    setup = SecAgg.agree_on(
        nonce=nonce or new_seed(),
        dimension=vectors.shape[1],
        minimum=minimum,
        users={i: keys[i].public.verifying for i in range(w)},
        server=keys[SERVER].public,
        corrupt_fraction=corrupt_fraction,
        dropout_fraction=dropout_fraction,
    )
    users = [SecAggUser(setup, i, keys[i], vectors[i], VolatileJournal()) for i in range(w)]
    server = SecAggServer(setup, keys[SERVER], VolatileJournal(), exclude)
    return SecAggParties(setup.session, keys, setup, users, server)


def false_shares(parties: SecAggParties, user: int) -> bytes:
    """The user's KEY_SHARES with shares that are as published, and of no one secret."""
    machine = parties.users[user]
    for peer in machine._sent.keys() & set(machine._list):
        link = Link(parties.setup, user, peer, (machine._advert, machine._peers[peer]))
        wild = ((peer + 1) ** 9 * 7919**20 % PRIME).to_bytes(SHARE_BYTES, "big")
        deal = write_deal(link, (wild, wild), machine._once(peer), machine._signing)
        machine._sent[peer] = deal
    payload = b"".join(machine._sent[p] for p in sorted(machine._sent))
    return parties.sign(Kind.KEY_SHARES, user, SERVER, payload)


@dataclass
class Drive:
    """Runs protocol `secagg` to its end; `answer` and `ask` may change or drop what is sent.

    `answer(kind, user, message)` is what a user sends, `ask(kind, user, message)` what it is sent;
    None is silence. What is refused is noted, and goes no further.
    """

    parties: SecAggParties
    answer: Callable[[Kind, int, bytes], bytes | None] = lambda kind, user, message: message
    ask: Callable[[Kind, int, bytes], bytes | None] = lambda kind, user, message: message
    refused: list[tuple[int, ProtocolError]] = field(default_factory=list)
    recalls: bool = True  # the server can have a message once more
    sent: dict[tuple[int, Kind], bytes] = field(default_factory=dict)

    def run(self) -> Opened:
        server = self.parties.server
        server._recall = (lambda user, kind: self.sent[user, kind]) if self.recalls else None
        users = {i: user for i, user in enumerate(self.parties.users) if i in server.waiting_for}
        answers: dict[int, bytes | None] = {i: user.start() for i, user in users.items()}
        while True:
            for i, message in answers.items():
                sent = message and self.answer(Kind(message[5]), i, message)
                if sent:
                    self.sent[i, Kind(sent[5])] = sent
                    self._try(SERVER, lambda m=sent: server.receive(m))
            if server.expects is Kind.EXPOSED:
                return server.finish()
            convicts = server.expects is Kind.REVEAL
            questions = server.convict() if convicts else server.advance()
            if convicts and not questions:
                return server.finish()
            answers = {}
            for i, message in questions.items():
                asked = self.ask(Kind(message[5]), i, message)
                if asked:
                    answers[i] = self._try(i, lambda i=i, m=asked: users[i].receive(m))

    def _try(self, party: int, work: Callable[[], bytes | None]) -> bytes | None:
        try:
            return work()
        except ProtocolError as error:
            self.refused.append((party, error))
            return None


@dataclass(frozen=True)
class SumResult:
    """A sum, and what it cost; set-up (keys) is not counted."""

    total: NDArray[np.uint64]  # (d,) sum over the survivors modulo 2^64
    survivors: tuple[int, ...]  # rows of `vectors` that the sum contains
    bytes_per_client: int  # sent and received, of the user with most
    bytes_server: int  # sent and received
    seconds_per_client: float  # CPU time, mean over users
    seconds_server: float  # CPU time


def simulate_sum(
    vectors: NDArray[np.uint64],
    drop: Mapping[int, Collection[int]] | None = None,
    *,
    minimum: int | None = None,
    corrupt_fraction: float = 0.1,
    dropout_fraction: float = 0.2,
) -> SumResult:
    """Sums the users' (w, d) vectors by protocol `secagg`.

    Args:
        drop: stage (0 advertise keys, 1 share keys, 2 masked input, 3 unmask) -> users whose
            message of that stage, and of later ones, never comes.
        minimum: m_min, fewest users whose sum is opened; default more than half.
    """
    w, last = len(vectors), dict[int, int]()
    for stage, dropped in sorted((drop or {}).items(), reverse=True):
        last |= dict.fromkeys(dropped, stage)
    octets, seconds = Counter[int](), defaultdict[int, float](float)

    def at(party: int, work: Callable[[], T]) -> T:
        start = time.process_time()
        try:
            return work()
        finally:
            seconds[party] += time.process_time() - start

    def answered(user: int, message: bytes) -> None:
        octets.update({user: len(message), SERVER: len(message)})
        at(SERVER, lambda: server.receive(message))

    parties = make_secagg(
        vectors,
        minimum=w // 2 + 1 if minimum is None else minimum,
        corrupt_fraction=corrupt_fraction,
        dropout_fraction=dropout_fraction,
    )
    server, users = parties.server, parties.users
    for i, user in enumerate(users):
        if last.get(i, UNMASK + 1) > ADVERTISE:
            answered(i, at(i, user.start))
    for stage in (SHARE_KEYS, MASKED_INPUT, UNMASK, UNMASK):  # the last two answers belong together
        messages = at(SERVER, server.advance)
        for i in sorted(messages):
            question = at(SERVER, lambda m=messages, i=i: m[i])
            octets.update({i: len(question), SERVER: len(question)})
            if last.get(i, UNMASK + 1) > stage:
                answered(i, at(i, lambda u=users[i], q=question: u.receive(q)))
    opened = at(SERVER, server.finish)
    return SumResult(
        total=opened.total,
        survivors=tuple(sorted(opened.users)),
        bytes_per_client=max(octets[i] for i in range(w)),
        bytes_server=octets[SERVER],
        seconds_per_client=sum(seconds[i] for i in range(w)) / w,
        seconds_server=seconds[SERVER],
    )
