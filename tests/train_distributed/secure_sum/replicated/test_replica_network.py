"""Messages late, twice, damaged, renamed, to the wrong server: the sum is exact or refused."""

import contextlib

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
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer
from train_distributed.secure_sum.tally import tally

W, D = 5, 3
PICK = st.integers(0, 10**6)
KEYS = {n: PrivateKeys.generate() for n in [*range(W), *range(FIRST_SERVER, FIRST_SERVER + 4)]}
VECTORS = np.array([[2**63 + 2**i, i, 2**64 - 1] for i in range(W)], np.uint64)
SETTINGS = settings(derandomize=True, deadline=None, max_examples=60, stateful_step_count=40)


class ReplicatedNetwork(RuleBasedStateMachine):
    """S servers behind a relay that does as it likes, and gives up on one of them if it likes."""

    completed = with_loss = 0

    @initialize(
        nonce=st.binary(min_size=32, max_size=32),
        servers=st.sampled_from([3, 4]),
        lost=st.sampled_from([None, 0, 2]),
    )
    def start(self, nonce: bytes, servers: int, lost: int | None) -> None:
        names = range(FIRST_SERVER, FIRST_SERVER + servers)
        self.setup = Replicated.agree_on(
            nonce=nonce,
            dimension=D,
            minimum=2,
            users={i: KEYS[i].public.verifying for i in range(W)},
            servers={s: KEYS[s].public for s in names},
        )
        self.machines = {s: ReplicaServer(self.setup, s, KEYS[s], VolatileJournal()) for s in names}
        self.lost = set() if lost is None else {FIRST_SERVER + lost}
        self.users = [ReplicatedUser(self.setup, i, KEYS[i], VolatileJournal()) for i in range(W)]
        self.waiting: list[tuple[int, bytes]] = []  # (receiver, message)
        self.taken: list[tuple[int, bytes]] = []
        for i, user in enumerate(self.users):
            self.waiting += user.submit(VECTORS[i])
        self.commits: dict[int, bytes] = {}
        self.openings: dict[int, bytes] = {}

    @property
    def live(self) -> list[int]:
        return [s for s in self.machines if s not in self.lost]

    @precondition(lambda self: self.waiting)
    @rule(pick=PICK)
    def deliver(self, pick: int) -> None:
        """A good message: taken, or refused only for coming at a wrong time or of another set."""
        receiver, message = self.waiting.pop(pick % len(self.waiting))
        if receiver in self.lost:
            return
        with contextlib.suppress(errors.OutOfOrder, errors.ReplayedMessage, errors.SetMismatch):
            self.machines[receiver].receive(message)
            self.taken.append((receiver, message))

    @precondition(lambda self: self.waiting or self.taken)
    @rule(pick=PICK, how=st.sampled_from(["flip", "cut", "grow", "rename", "misdeliver"]))
    def deliver_damaged(self, pick: int, how: str) -> None:
        both = self.waiting + self.taken
        receiver, message = both[pick % len(both)]
        if how == "misdeliver":
            if message[42:46] == b"\xff" * 4:
                return
            names = list(self.machines)
            receiver = names[(names.index(receiver) + 1) % len(names)]
        at = pick % len(message)
        damaged = {
            "flip": message[:at] + bytes([message[at] ^ (1 << pick % 8)]) + message[at + 1 :],
            "cut": message[: at - len(message)],
            "grow": message + bytes(pick % 400 + 1),
            "rename": message[:38] + bytes([message[38] ^ 1]) + message[39:],
            "misdeliver": message,
        }[how]
        with pytest.raises(errors.ProtocolError):
            self.machines[receiver].receive(damaged)

    @precondition(lambda self: self.live)
    @rule(pick=PICK, step=st.sampled_from(["hold", "settle", "settle", "commit", "open"]))
    def progress(self, pick: int, step: str) -> None:
        """Some server tries some step, whether or not it is time."""
        server = self.live[pick % len(self.live)]
        machine = self.machines[server]
        with contextlib.suppress(errors.OutOfOrder, errors.TooFewUsers, errors.AlreadyOpened):
            if step == "settle":
                machine.settle(self.lost)
                return
            message = getattr(machine, step)()
            if step == "open":
                self.openings[server] = message
                return
            if step == "commit":
                self.commits[server] = message
            self.waiting += [(s, message) for s in self.live if s != server]

    def teardown(self) -> None:
        """Whatever happened, the relay now does its duty; users are witnesses if one is lost."""
        for step in ("settle", "hold", "settle", "hold", "settle", "commit", "open"):
            for _ in range(len(self.waiting)):
                self.deliver(0)
            if step == "open" and len(self.commits) == len(self.machines) - 1:
                for user in self.users:
                    with contextlib.suppress(errors.ProtocolError):
                        word = user.witness(list(self.commits.values()))
                        for server in self.live:
                            self.machines[server].receive(word)
            for place in range(len(self.live)):
                self.progress(place, step)
        self.what_is_opened_is_the_sum()
        enough = len(self.openings) >= len(self.machines) - 1
        type(self).completed += enough
        type(self).with_loss += enough and bool(self.lost)

    @invariant()
    def what_is_opened_is_the_sum(self) -> None:
        openings = getattr(self, "openings", {})
        if openings and len(openings) >= len(self.machines) - 1:
            found = tally(self.setup, self.commits[next(iter(openings))], openings)
            users = sorted(found.opened.users)
            assert len(users) >= 2
            assert np.array_equal(found.opened.total, VECTORS[users].sum(0))
            assert set(found.faults) == set(self.machines) - set(openings)


def test_no_network_makes_a_wrong_sum() -> None:
    run_state_machine_as_test(ReplicatedNetwork, settings=SETTINGS)
    assert ReplicatedNetwork.completed >= 10  # of 60 examples
    assert ReplicatedNetwork.with_loss >= 3
