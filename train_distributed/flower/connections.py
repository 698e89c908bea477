"""Parties that are connected, each proven at its node, and questions to them in windows.

A name is bound to the first node that shows that party's own signature over this operator's order
to that node (and, where the federation lists it, has the party's node key). Whoever shows the same
name from another node is named and left out.
"""

import struct
import time
from collections.abc import Iterator, Mapping
from typing import Protocol

from train_distributed.flower.blobs import split
from train_distributed.flower.documents.federation import Federation, name_of
from train_distributed.flower.orders import NONCE_BYTES, read_presence, write_order
from train_distributed.flower.progress import Log, Progress
from train_distributed.flower.record import Record
from train_distributed.flower.request_handler import DONE, Request, answer_bytes, words
from train_distributed.secure_sum.errors import MalformedMessage, ProtocolError, WrongSender
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.prg import new_seed
from train_distributed.secure_sum.secagg import ADVERTISE_BYTES
from train_distributed.secure_sum.wire import kind_of

PRESENT_SECONDS = 10.0  # that a node has at least to answer PRESENT
GOODBYE_SECONDS = 5.0  # to hear END
LOOK_SECONDS = 0.5  # between looks at who is connected
REFUSAL_BYTES = 2**12


class Relay(Protocol):
    """Carries requests to nodes and brings back what they answer in time."""

    def nodes(self) -> dict[int, str]:
        """Node -> fingerprint of its key, of those that are here now."""
        ...

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """(node, answer), as they come, of those that answer within the time-out."""
        ...


class Connections:
    """The parties of one session.

    Args:
        federation: what was agreed.
        nonce: the session's.
        keys: the operator's.
        relay: to the nodes.
        record: of the session.
        progress: is told who comes and who answers.
        log: is told what was refused.
        seconds: to wait for parties.
        preface: what every node is asked first, whatever it answers; None: nothing.
    """

    def __init__(
        self,
        federation: Federation,
        nonce: bytes,
        keys: PrivateKeys,
        relay: Relay,
        record: Record | None,
        progress: Progress,
        log: Log,
        seconds: float,
        preface: bytes | None = None,
    ) -> None:
        self._federation, self._nonce, self._keys = federation, nonce, keys
        self._relay, self._record = relay, record
        self._progress, self._log, self._seconds = progress, log, seconds
        self._preface = preface
        self._node: dict[int, int] = {}  # party -> node
        self._left_out: set[int] = set()  # nodes
        self._willing: set[int] = set()
        self.first: dict[int, list[bytes]] = {}

    @property
    def here(self) -> frozenset[int]:
        """Parties that are bound to a node and can take part."""
        return frozenset(self._willing)

    @property
    def largest(self) -> int:
        """Bytes that one request may have."""
        return self._federation.largest_frame

    def gather(self, wanted: frozenset[int], seconds: float | None = None) -> None:
        """Waits until the wanted parties are here, or the time is up.

        Raises:
            ConnectionError: the relay is gone.
        """
        deadline = time.monotonic() + (self._seconds if seconds is None else seconds)
        while not wanted <= self._node.keys():
            nodes = self._relay.nodes()
            fresh = nodes.keys() - set(self._node.values()) - self._left_out
            orders = {node: self._order(node) for node in sorted(fresh)}
            patience = max(PRESENT_SECONDS, 4 * self._federation.longest_poll)
            if self._preface is not None:
                for node, answer in self._relay.ask_each(
                    dict.fromkeys(orders, self._preface), patience
                ):
                    if answer[:1] != DONE:
                        self._log.refuse(f"node {node}", b"refused: " + answer[1:REFUSAL_BYTES])
            for node, answer in self._relay.ask_each(orders, patience):
                self._bind(node, nodes[node], orders[node], answer)
            missing = map(self._federation.display_name, sorted(wanted - self._node.keys()))
            self._progress.present(self._willing, len(wanted), missing)
            if time.monotonic() >= deadline:
                return
            if not wanted <= self._node.keys():
                time.sleep(LOOK_SECONDS)

    def start(self, users: frozenset[int]) -> None:
        """START to all parties of the session; what they answer is in `first`, until the end.

        Args:
            users: that are present.
        """
        body = self._nonce + self._federation.session(self._nonce).bitmap(users)
        order = write_order(self._federation, Request.START, body, self._keys)
        asked = dict.fromkeys(sorted(users), order)
        self.first = dict(self.ask_each(asked, answer_bytes(ADVERTISE_BYTES)))

    def end(self, opened: bool) -> None:
        """END to whoever is here; nobody has to answer."""
        body = self._nonce + bytes([opened])
        order = write_order(self._federation, Request.END, body, self._keys)
        seconds = max(GOODBYE_SECONDS, 4 * self._federation.longest_poll)
        for _ in self._relay.ask_each(dict.fromkeys(self._node.values(), order), seconds):
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
        self._progress.stage(_stage(requests), requests)
        count = 0
        for party, answer in self._collect(requests, 1 + max(REFUSAL_BYTES, self._most(longest))):
            messages = self._read(party, answer, longest)
            if messages is not None:
                count += 1
                yield party, messages
        self._progress.answered(count, len(requests))

    def _collect(self, requests: dict[int, bytes], most: int) -> Iterator[tuple[int, bytes]]:
        """(party, answer): what was written down before a restart, then what comes now.

        Of an answer that is too long no more than `most` bytes are kept, enough to refuse it.
        """
        if self._record is None:
            yield from self._live(requests)
            return
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

    def _order(self, node: int) -> bytes:
        body = new_seed() + self._nonce + struct.pack(">Q", node)
        return write_order(self._federation, Request.PRESENT, body, self._keys)

    def _bind(self, node: int, key: str, order: bytes, answer: bytes) -> None:
        """Believes an answer to PRESENT, or leaves its node out."""
        try:
            if answer[:1] != DONE:
                raise ProtocolError(f"refused: {answer[1:REFUSAL_BYTES]!r}")
            (shown,) = split(answer[1:])
            body = order[1 : 1 + 2 * NONCE_BYTES + 8]
            party, willing = read_presence(self._federation, body, shown)
            if self._federation.nodes.get(party, key) != key:
                raise WrongSender(f"{name_of(party)} must come with its own node key")
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
