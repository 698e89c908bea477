"""Whole sessions of protocol `secagg`, to be run message by message."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import FIRST_SERVER, PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.wire import Kind, write


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


@pytest.fixture
def vectors() -> Callable[[int, int], NDArray[np.uint64]]:
    def draw(w: int, d: int) -> NDArray[np.uint64]:
        return np.random.default_rng(w * 100_003 + d).integers(0, 2**64, (w, d), np.uint64)

    return draw


@pytest.fixture
def make_secagg() -> Callable[..., SecAggParties]:
    def make(
        vectors: NDArray[np.uint64],
        *,
        minimum: int = 2,
        corrupt_fraction: float = 0.1,
        dropout_fraction: float = 0.2,
        keys: dict[int, PrivateKeys] | None = None,
        nonce: bytes | None = None,
        exclude: Collection[int] = (),
    ) -> SecAggParties:
        w = len(vectors)
        keys = keys or {party: PrivateKeys.generate() for party in [*range(w), FIRST_SERVER]}
        setup = SecAgg.agree_on(
            nonce=nonce or new_seed(),
            dimension=vectors.shape[1],
            minimum=minimum,
            users={i: keys[i].public.verifying for i in range(w)},
            server=keys[FIRST_SERVER].public,
            corrupt_fraction=corrupt_fraction,
            dropout_fraction=dropout_fraction,
        )
        users = [SecAggUser(setup, i, keys[i], vectors[i], VolatileJournal()) for i in range(w)]
        server = SecAggServer(setup, keys[FIRST_SERVER], VolatileJournal(), exclude)
        return SecAggParties(setup.session, keys, setup, users, server)

    return make


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


@pytest.fixture
def drive() -> type[Drive]:
    return Drive
