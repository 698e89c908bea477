"""The operator's side: runs one session over a relay that may lose anyone at any time."""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from train_distributed.flower.blobs import join, split
from train_distributed.flower.desk import DONE, ComputationDesk, Desk, Request, words
from train_distributed.flower.federation import Federation
from train_distributed.flower.portions import BATCH_BYTES
from train_distributed.flower.run_replicated import run_replicated
from train_distributed.flower.run_shares import run_shares
from train_distributed.secure_sum.errors import MalformedMessage, ProtocolError
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.session import FIRST_SERVER

REFUSED_BYTES = 1000  # of a refusal in words


class Relay(Protocol):
    """Carries requests to nodes and brings back what they answer in time."""

    def nodes(self) -> list[int]:
        """Nodes that are here now."""
        ...

    def ask(self, requests: dict[int, bytes]) -> dict[int, bytes]:
        """Node -> answer, of those that answered within the time-out."""
        ...


@dataclass
class Log:
    """What went wrong on the way; identities and words, nothing of anyone's data."""

    missing: dict[int, str] = field(default_factory=dict)  # user -> where it was lost
    refused: list[str] = field(default_factory=list)

    def lost(self, users: Iterable[int], step: str) -> None:
        """Notes users that did not get past a step; the first note stays."""
        for user in sorted(users):
            self.missing.setdefault(user, step)

    def refuse(self, who: str, why: str) -> None:
        """Notes what was refused, of whom, and why."""
        self.refused.append(f"{who}: {why}")


def coordinate(
    federation: Federation,
    nonce: bytes,
    keys: PrivateKeys,
    journal: Journal,
    relay: Relay,
    log: Log,
) -> Opened:
    """One session: everyone is greeted, the protocol runs, the sum is opened once.

    Args:
        federation: what was agreed.
        nonce: 32 fresh bytes.
        keys: the operator's, server 0 of the federation.
        journal: the operator's, durable.
        relay: to the nodes.
        log: is told who went missing and what was refused, also when the session fails.

    Raises:
        ProtocolError: the sum could not be opened; nothing is released.
    """
    present = _Present(relay, log)
    present.greet(nonce)
    if federation.protocol == "secagg":
        server = SecAggServer(federation.secagg(nonce), keys, journal)
        return _run_secagg(federation, server, present, log)
    present.host(FIRST_SERVER, ComputationDesk(federation, FIRST_SERVER, keys, journal), nonce)
    if federation.protocol == "shares-replicated":
        return run_replicated(federation.replicated(nonce), present, log)
    return run_shares(federation.session(nonce), present, log)


class _Present:
    """Who answered, at which node, and with what first messages."""

    def __init__(self, relay: Relay, log: Log) -> None:
        self._relay, self._log = relay, log
        self._node: dict[int, int] = {}
        self._local: dict[int, Desk] = {}
        self.first: dict[int, list[bytes]] = {}

    def greet(self, nonce: bytes) -> None:
        """HELLO to every node; who claims a name that was claimed before is ignored."""
        hello = bytes([Request.HELLO]) + nonce
        for node, answer in sorted(
            self._relay.ask(dict.fromkeys(self._relay.nodes(), hello)).items()
        ):
            messages = self._done(f"node {node}", answer)
            if not messages or len(messages[0]) != 4:
                continue
            (name,) = struct.unpack(">I", messages[0])
            if name in self._node:
                self._log.refused.append(f"node {node}: party {name} is at another node already")
                continue
            self._node[name] = node
            self.first[name] = messages[1:]

    def host(self, party: int, desk: Desk, nonce: bytes) -> None:
        """A desk in this process."""
        self._local[party] = desk
        self.ask({party: bytes([Request.HELLO]) + nonce})

    def ask(self, requests: dict[int, bytes], longest: int | None = None) -> dict[int, list[bytes]]:
        """Party -> messages, of those that answered, within so many bytes, and did not refuse."""
        remote = {self._node[p]: r for p, r in requests.items() if p in self._node}
        party = {self._node[p]: p for p in requests if p in self._node}
        answers = {p: self._local[p].answer(r) for p, r in requests.items() if p in self._local}
        if remote:
            answers |= {party[n]: a for n, a in self._relay.ask(remote).items() if n in party}
        done = {p: self._done(f"party {p}", a, longest) for p, a in answers.items()}
        return {p: messages for p, messages in done.items() if messages is not None}

    def ask_each(
        self, requests: dict[int, bytes], longest: int
    ) -> Iterator[tuple[int, list[bytes]]]:
        """(party, messages) of those that answer, so many at a time as make a batch."""
        size, parties = max(1, BATCH_BYTES // longest), list(requests)
        for start in range(0, len(parties), size):
            batch = {p: requests[p] for p in parties[start : start + size]}
            yield from self.ask(batch, longest).items()

    def _done(self, who: str, answer: bytes, longest: int | None = None) -> list[bytes] | None:
        if longest is not None and len(answer) > max(longest, REFUSED_BYTES):
            self._log.refused.append(f"{who}: answer must be <= {longest} bytes, got {len(answer)}")
            return None
        if answer[:1] == DONE:
            try:
                return split(answer[1:])
            except MalformedMessage as error:
                self._log.refused.append(f"{who}: {words(error)}")
                return None
        self._log.refused.append(f"{who} refused: {answer[1:501].decode(errors='replace')}")
        return None


def _run_secagg(
    federation: Federation, server: SecAggServer, present: _Present, log: Log
) -> Opened:
    answers = {u: m for u, m in present.first.items() if u in federation.users}
    for step in ("advertise keys", "share keys", "masked input", "agree on survivors"):
        _take(server.receive, answers, log)
        log.lost(server.waiting_for, step)
        questions = server.advance()
        answers = present.ask(
            {u: bytes([Request.DELIVER]) + join([q]) for u, q in questions.items()}
        )
    _take(server.receive, answers, log)
    log.lost(server.waiting_for, "unmask")
    return server.finish()


def _take(receive: Callable[[bytes], None], answers: dict[int, list[bytes]], log: Log) -> None:
    for party, messages in sorted(answers.items()):
        for message in messages:
            try:
                receive(message)
            except ProtocolError as error:
                log.refused.append(f"party {party}: {words(error)}")
