"""Parties that are connected, each proven at its node, and questions to them in windows.

A name is bound to the first node that shows that party's own signature over this operator's order
to that node. Whoever shows the same name from another node is named and left out. A node is one end
of the carrier's line: with the service of `polling`, the party that has signed its polls.
"""

import struct
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.orders import (
    DONE,
    NONCE_BYTES,
    Request,
    join,
    read_presence,
    split,
    words,
    write_order,
)
from train_distributed.federation.progress import Log
from train_distributed.federation.record import SessionLog
from train_distributed.secure_sum.errors import MalformedMessage, ProtocolError, WrongSender
from train_distributed.secure_sum.journal import Journal
from train_distributed.secure_sum.keys import PrivateKeys, name_of
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES
from train_distributed.secure_sum.wire import OVERHEAD, kind_of

LOOK_SECONDS = 0.1  # between looks at who is connected
LEAST_SECONDS = 1.0  # that a node has to answer PRESENT when the time for it to come ends
REFUSAL_BYTES = 2**12
ADVERTISEMENT = len(DONE + join([b""])) + OVERHEAD + ADVERTISE_BYTES  # longest answer to START


class Relay(Protocol):
    """Carries requests to nodes and brings back what they answer in time."""

    def nodes(self) -> Collection[int]:
        """Nodes that are here now."""
        ...

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """(node, answer), as they come, of those that answer within the time-out."""
        ...


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The operator at work: what it runs, and what every session of it needs."""

    federation: Federation  # what was agreed
    keys: PrivateKeys  # the operator's, server 0 of the federation
    journal: Journal  # the operator's, durable
    relay: Relay  # to the nodes
    record: SessionLog  # where the session is written down, to be resumed after a crash
    log: Log  # is told how it goes, who went missing, what was refused, also if a session fails
    preface: bytes | None = None  # what every node is asked first: of a second sum


class Connections:
    """The parties of one session, which has this nonce."""

    def __init__(self, operator: Operator, nonce: bytes) -> None:
        self._operator, self._federation, self._nonce = operator, operator.federation, nonce
        self._relay, self._record, self._log = operator.relay, operator.record, operator.log
        self._deadlines = operator.federation.deadlines
        self._node: dict[int, int] = {}  # party -> node
        self._orders: dict[int, bytes] = {}  # node -> PRESENT, the same until it is answered
        self._left_out: set[int] = set()  # nodes
        self._willing: set[int] = set()

    @property
    def here(self) -> frozenset[int]:
        """Parties that are bound to a node and can take part."""
        return frozenset(self._willing)

    def gather(self, wanted: frozenset[int], seconds: float | None = None, needed: int = 0) -> None:
        """Waits until the wanted parties are here, or the time is up, or too many have refused.

        Args:
            wanted: parties.
            seconds: to wait; as agreed if left out.
            needed: parties that must take part; once so many cannot, nobody is waited for.

        Raises:
            ConnectionError: the relay is gone.
        """
        deadline = time.monotonic() + (self._deadlines.come if seconds is None else seconds)
        patience = self._deadlines.present
        while not wanted <= self._node.keys():
            fresh = set(self._relay.nodes()) - set(self._node.values()) - self._left_out
            self._orders |= {node: self._who(node) for node in fresh - self._orders.keys()}
            orders = {node: self._orders[node] for node in sorted(fresh)}
            if (preface := self._operator.preface) is not None:
                for node, answer in self._relay.ask_each(dict.fromkeys(orders, preface), patience):
                    if answer[:1] != DONE:
                        self._log.refuse(f"node {node}", b"refused: " + answer[1:REFUSAL_BYTES])
            for node, answer in self._relay.ask_each(orders, patience):
                self._bind(node, orders[node], answer)
            missing = map(self._federation.display_name, sorted(wanted - self._node.keys()))
            self._log.present(self._willing, len(wanted), missing)
            refused = self._node.keys() - self._willing
            if time.monotonic() >= deadline or len(wanted - refused) < needed:
                return
            patience = min(patience, max(LEAST_SECONDS, deadline - time.monotonic()))
            if not wanted <= self._node.keys():
                time.sleep(LOOK_SECONDS)

    def start(self, users: frozenset[int]) -> Iterator[tuple[int, list[bytes]]]:
        """START to the users that are present; (user, first messages) as `ask_each`."""
        body = self._nonce + self._federation.session(self._nonce).bitmap(users)
        asked = dict.fromkeys(sorted(users), self._order(Request.START, body))
        return self.ask_each(asked, ADVERTISEMENT)

    def end(self, opened: bool) -> None:
        """END to whoever is here; nobody has to answer."""
        order = self._order(Request.END, self._nonce + bytes([opened]))
        asked = dict.fromkeys(self._node.values(), order)
        for _ in self._relay.ask_each(asked, self._deadlines.goodbye):
            pass

    def ask_each(
        self, requests: dict[int, bytes], longest: int | None = None
    ) -> Iterator[tuple[int, list[bytes]]]:
        """(party, messages) as they come, of those that answered and did not refuse.

        Args:
            requests: by party.
            longest: bytes that an answer may have; the federation's limit if left out.

        Raises:
            ConnectionError: the relay is gone.
            OSError: an answer cannot be written down; nothing that follows from it is sent.
            CannotResume: another question was asked in its place before a restart.
        """
        self._log.stage(_stage(requests), requests)
        count = 0
        for party, answer in self._collect(requests, 1 + max(REFUSAL_BYTES, self._most(longest))):
            messages = self._read(party, answer, longest)
            if messages is not None:
                count += 1
                yield party, messages
        self._log.answered(count, len(requests))

    def _collect(self, requests: dict[int, bytes], most: int) -> Iterator[tuple[int, bytes]]:
        """(party, answer): what was written down before a restart, then what comes now.

        Of an answer that is too long no more than `most` bytes are kept, enough to refuse it.
        """
        call = self._record.call(requests)
        known = self._record.answered(call)
        yield from self._record.answers(call)
        if self._record.complete(call):
            return
        left = {party: request for party, request in requests.items() if party not in known}
        self._record.sync()
        for party, answer in self._live(left):
            self._record.add(call, party, answer[:most])
            yield party, answer[:most]
        self._record.finish(call)
        self._record.sync()

    def _live(self, requests: dict[int, bytes]) -> Iterator[tuple[int, bytes]]:
        if not requests.keys() <= self._node.keys():
            self.gather(frozenset(requests), None if not self._node else 0.0)
        party = {self._node[p]: p for p in requests if p in self._node}
        asked = {node: requests[p] for node, p in party.items()}
        self._log.sent += sum(map(len, asked.values()))
        for node, answer in self._relay.ask_each(asked):
            self._log.received += len(answer)
            yield party[node], answer

    def _read(self, party: int, answer: bytes, longest: int | None) -> list[bytes] | None:
        most, who = self._most(longest), self._federation.display_name(party)
        self._log.bytes_of[party] = self._log.bytes_of.get(party, 0) + len(answer)
        if answer[:1] != DONE:
            self._log.refuse(who, b"refused: " + answer[1:REFUSAL_BYTES])
            return None
        try:
            if len(answer) > most:
                raise MalformedMessage(f"answer must be <= {most} bytes, got {len(answer)}")
            return split(answer[1:])
        except MalformedMessage as error:
            self._log.refuse(who, words(error))
            return None

    def _most(self, longest: int | None) -> int:
        return self._federation.largest_frame if longest is None else longest

    def _who(self, node: int) -> bytes:
        return self._order(Request.PRESENT, new_seed() + self._nonce + struct.pack(">Q", node))

    def _order(self, kind: Request, body: bytes) -> bytes:
        return write_order(self._federation, kind, body, self._operator.keys)

    def _bind(self, node: int, order: bytes, answer: bytes) -> None:
        """Believes an answer to PRESENT, or leaves its node out."""
        try:
            if answer[:1] != DONE:
                raise ProtocolError(f"refused: {answer[1:REFUSAL_BYTES]!r}")
            (shown,) = split(answer[1:])
            body = order[1 : 1 + 2 * NONCE_BYTES + 8]
            party, willing = read_presence(self._federation, body, shown)
            if party in self._node:
                raise WrongSender(f"{name_of(party)} is at another node already")
        except ValueError as error:
            self._left_out.add(node)
            self._log.refuse(f"node {node}", words(error))
            return
        self._node[party] = node
        if willing:
            self._willing.add(party)
        else:
            why = "refused: budget, all agreed sessions are used up"
            self._log.refuse(self._federation.display_name(party), why)


def _stage(requests: dict[int, bytes]) -> str:
    """Names the question by its first request: its kind, or that of the message in it."""
    request = next(iter(requests.values()), bytes([Request.DELIVER]))
    name = Request(request[0]).name.lower()
    if request[0] != Request.DELIVER:
        return name
    try:
        return f"{name} {kind_of(split(request[1:])[0])}"
    except (ProtocolError, IndexError):
        return name
