"""Messages late, twice, damaged, renamed, misdelivered: the sum is exact or refused."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from train_distributed.secure_sum import errors
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.secagg import SERVER, SecAgg
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser

W, D = 5, 3
PICK = st.integers(0, 10**6)
KEYS = {n: PrivateKeys.generate() for n in [*range(W), SERVER]}
VECTORS = np.array([[2**63 + 2**i, i, 2**64 - 1] for i in range(W)], np.uint64)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=40, stateful_step_count=40)
DAMAGE = st.one_of(
    st.tuples(st.just("flip"), PICK),
    st.tuples(st.just("cut"), st.integers(1, 400)),
    st.tuples(st.just("grow"), st.integers(1, 400)),
    st.tuples(st.just("rename"), st.sampled_from([*range(W), SERVER, SERVER + 1])),
    st.tuples(st.just("session"), PICK),
)


def damage(message: bytes, how: str, n: int) -> tuple[bytes, type[errors.ProtocolError]]:
    """A damaged copy, and the most general error that may refuse it."""
    if how == "flip":
        at = n % len(message)
        copy = message[:at] + bytes([message[at] ^ (1 << n % 8)]) + message[at + 1 :]
        return copy, errors.ProtocolError
    if how == "cut":
        return message[: max(0, len(message) - n)], errors.TruncatedMessage
    if how == "grow":
        return message + bytes(n), errors.OversizedMessage
    if how == "rename":
        copy = message[:38] + n.to_bytes(4, "big") + message[42:]
        return (copy, errors.ProtocolError) if copy != message else (b"", errors.TruncatedMessage)
    return message[:6] + bytes(31) + bytes([n % 256]) + message[38:], errors.WrongSession


class SecAggNetwork(RuleBasedStateMachine):
    """`secagg` behind a relay that delays, repeats and damages; silent users count as dropped."""

    completed = 0

    @initialize(nonce=st.binary(min_size=32, max_size=32))
    def start(self, nonce: bytes) -> None:
        setup = SecAgg.agree_on(
            nonce=nonce,
            dimension=D,
            minimum=3,
            users={i: KEYS[i].public.verifying for i in range(W)},
            server=KEYS[SERVER].public,
            corrupt_fraction=0.1,
            dropout_fraction=0.2,
        )
        self.server = SecAggServer(setup, KEYS[SERVER], VolatileJournal())
        self.users = [
            SecAggUser(setup, i, KEYS[i], VECTORS[i], VolatileJournal()) for i in range(W)
        ]
        self.to_server = [user.start() for user in self.users]
        self.to_users: dict[int, bytes] = {}
        self.taken: list[bytes] = []
        self.round, self.opened, self.failed = 0, None, False

    @precondition(lambda self: self.to_server)
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        message = self.to_server.pop(pick % len(self.to_server))
        if self.failed or self.opened:
            with pytest.raises((errors.OutOfOrder, errors.ReplayedMessage)):
                self.server.receive(message)
        else:
            self.server.receive(message)
            self.taken.append(message)

    @precondition(lambda self: self.to_users)
    @rule(pick=PICK, how=DAMAGE)
    def ask(self, pick: int, how: tuple[str, int]) -> None:
        """First a damaged question, then the good one, then the good one again."""
        user = sorted(self.to_users)[pick % len(self.to_users)]
        question = self.to_users.pop(user)
        copy, error = damage(question, *how)
        with pytest.raises(error):
            self.users[user].receive(copy)
        with pytest.raises((errors.WrongReceiver, errors.WrongSession)):
            self.users[(user + 1) % W].receive(question)
        self.to_server.append(self.users[user].receive(question))
        with pytest.raises((errors.ReplayedMessage, errors.OutOfOrder)):
            self.users[user].receive(question)

    @precondition(lambda self: self.taken or self.to_server)
    @rule(pick=PICK, how=DAMAGE)
    def deliver_damaged(self, pick: int, how: tuple[str, int]) -> None:
        both = self.to_server + self.taken
        copy, error = damage(both[pick % len(both)], *how)
        with pytest.raises(error):
            self.server.receive(copy)

    @precondition(lambda self: self.taken)
    @rule(pick=PICK)
    def replay(self, pick: int) -> None:
        with pytest.raises((errors.ReplayedMessage, errors.OutOfOrder)):
            self.server.receive(self.taken[pick % len(self.taken)])

    @precondition(lambda self: not (self.failed or self.opened) and len(self.to_server) <= 1)
    @rule()
    def advance(self) -> None:
        """The time-out of a round: at most one answer and some questions are lost."""
        self.to_server.clear()
        self.to_users.clear()
        try:
            if self.round < 4:
                self.to_users = dict(self.server.advance())
                self.round += 1
            else:
                self.opened = self.server.finish()
        except errors.TooFewUsers:
            self.failed = True

    def teardown(self) -> None:
        """Whatever happened, everyone left now answers."""
        while not (self.failed or self.opened):
            while self.to_users:
                self.ask(0, ("cut", 1))
            while self.to_server:
                self.deliver(0)
            self.advance()
        type(self).completed += self.opened is not None
        self.what_is_opened_is_the_sum()

    @invariant()
    def what_is_opened_is_the_sum(self) -> None:
        opened: Opened | None = getattr(self, "opened", None)
        if opened:
            assert len(opened.users) >= 3
            assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))


def test_no_network_makes_a_wrong_sum() -> None:
    run_state_machine_as_test(SecAggNetwork, settings=SETTINGS)
    assert SecAggNetwork.completed >= 8  # of 40 examples
