"""The operator's side: runs one session over a relay that may lose anyone at any time."""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from train_distributed.flower.blobs import join, split
from train_distributed.flower.desk import DONE, ComputationDesk, Desk, Request, words
from train_distributed.flower.federation import Federation
from train_distributed.secure_sum.errors import MalformedMessage, OutOfOrder, ProtocolError
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.session import FIRST_SERVER, Session
from train_distributed.secure_sum.wire import Kind, receiver_of

_STEPS = {
    Kind.ADVERTISE: "advertise keys",
    Kind.KEY_SHARES: "share keys",
    Kind.MASKED: "masked input",
    Kind.DEFENCE: "answer complaints",
    Kind.AGREED: "agree on survivors",
    Kind.REVEAL: "unmask",
}


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
    desk = ComputationDesk(federation, FIRST_SERVER, keys, journal)
    return _run_shares(federation.session(nonce), desk, nonce, present, log)


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

    def ask(self, requests: dict[int, bytes]) -> dict[int, list[bytes]]:
        """Party -> messages, of the parties that answered and did not refuse."""
        remote = {self._node[p]: r for p, r in requests.items() if p in self._node}
        party = {self._node[p]: p for p in requests if p in self._node}
        answers = {p: self._local[p].answer(r) for p, r in requests.items() if p in self._local}
        if remote:
            answers |= {party[n]: a for n, a in self._relay.ask(remote).items() if n in party}
        done = {p: self._done(f"party {p}", a) for p, a in answers.items()}
        return {p: messages for p, messages in done.items() if messages is not None}

    def _done(self, who: str, answer: bytes) -> list[bytes] | None:
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
    while True:
        _take(server.receive, answers, log)
        log.lost(server.waiting_for, _STEPS[server.expects])
        if server.expects is Kind.REVEAL:
            return server.finish()
        questions = server.advance()
        answers = present.ask(
            {u: bytes([Request.DELIVER]) + join([q]) for u, q in questions.items()}
        )


def _take(receive: Callable[[bytes], None], answers: dict[int, list[bytes]], log: Log) -> None:
    for party, messages in sorted(answers.items()):
        for message in messages:
            try:
                receive(message)
            except ProtocolError as error:
                log.refused.append(f"party {party}: {words(error)}")


def _run_shares(
    session: Session, own: ComputationDesk, nonce: bytes, present: _Present, log: Log
) -> Opened:
    present.host(FIRST_SERVER, own, nonce)
    *seeds, last = sorted(session.servers)
    users = {user for user in present.first if user in session.users}
    parts = _sort({user: present.first[user] for user in users}, session, log)
    log.lost(set(session.users) - users, "submit")
    for server in seeds:
        _deliver(present, {server: parts[server]}, log)
    held = _signed(present, seeds, Request.CLOSE)
    _deliver(present, {last: [*held.values(), *parts[last]]}, log)
    commits: dict[int, bytes] = {}
    for server in (last, *seeds):
        commits |= _signed(present, [server], Request.COMMIT)
        others = [s for s in session.servers if s != server]
        _deliver(present, {s: [commits[server]] for s in others}, log)
    openings = _signed(present, sorted(session.servers), Request.OPEN)
    opened = combine(session, commits[last], list(openings.values()))
    log.lost(users - opened.users, "shares")
    return opened


def _sort(first: dict[int, list[bytes]], session: Session, log: Log) -> dict[int, list[bytes]]:
    """Server -> the users' messages for it."""
    parts: dict[int, list[bytes]] = {server: [] for server in session.servers}
    for user, messages in sorted(first.items()):
        for message in messages:
            try:
                parts.get(receiver_of(message), []).append(message)
            except ProtocolError as error:
                log.refused.append(f"party {user}: {words(error)}")
    return parts


def _signed(present: _Present, servers: list[int], request: Request) -> dict[int, bytes]:
    """The one message of each server; without any of them the session ends."""
    answers = present.ask({server: bytes([request]) for server in servers})
    missing = [server for server in servers if len(answers.get(server, [])) != 1]
    if missing:
        raise OutOfOrder(f"all servers must answer {request.name}, missing {missing}")
    return {server: answers[server][0] for server in servers}


def _deliver(present: _Present, messages: dict[int, list[bytes]], log: Log) -> None:
    answers = present.ask({s: bytes([Request.DELIVER]) + join(m) for s, m in messages.items()})
    for server, refused in answers.items():
        log.refused += [f"server {server}: {text.decode(errors='replace')}" for text in refused]
