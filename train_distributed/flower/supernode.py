"""One party's node: its endpoint, and a carrier that brings it the operator's requests.

Keys, rows and the endpoint are in this process. The carrier is another (`carrier.py`), with the
node's key alone; between the two runs a socket with questions, answers and a few words of state.
"""

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pretrain.cli.waiting import to_terminal
from train_distributed.flower.documents.document import safe
from train_distributed.flower.documents.key_files import NODE_KEY
from train_distributed.flower.documents.window_file import split_address
from train_distributed.flower.endpoint import Endpoint
from train_distributed.flower.orders import REFUSED
from train_distributed.flower.transport import frames
from train_distributed.flower.transport.processes import Child, child
from train_distributed.flower.transport.sandbox import hide_memory

MOST_SAID = 100  # refusals that are shown
RESTART_SECONDS = 2.0
LOOK_SECONDS = 1.0
DELIVER_SECONDS = 30.0  # that a carrier has for the last answer


@dataclass(frozen=True)
class Node:
    """Endpoint of a party, and the operator's address that it connects to."""

    endpoint: Endpoint
    superlink: str  # host:port
    ca: Path
    keys: Path  # folder with node-key
    patience: float = 3600.0  # seconds since the last contact, until the node gives up
    log: Path | None = None  # for the carrier's output
    say: Callable[[str], None] = to_terminal


def serve(node: Node) -> int:
    """Answers until all agreed sessions are over, or the operator is gone for too long.

    An operator that comes back within the node's patience finds the endpoint as it left it.

    Returns:
        0: all agreed sessions are over. 1: no contact for `patience` seconds.

    Raises:
        ValueError: Flower is not installed, a file is missing, or the address has no port.
    """
    split_address(node.superlink)
    for path in (node.ca, node.keys / NODE_KEY):
        if not path.is_file():
            raise ValueError(f"{path} must be a file, is not")
    config = {
        "address": node.superlink,
        "ca": node.ca.read_text(),
        "key": (node.keys / NODE_KEY).read_text(),
        "largest": node.endpoint.largest_frame,
        "poll": node.endpoint.poll_seconds,
    }
    hide_memory()
    contact = _Contact(node.patience)
    while not node.endpoint.over and not contact.lost():
        with child("carrier", config, node.log) as carrier:
            try:
                _answer(node, carrier, contact)
            except (ConnectionError, OSError) as error:
                node.say(f"the carrier has ended and is started again: {safe(str(error))}")
        if not node.endpoint.over and not contact.lost():
            time.sleep(RESTART_SECONDS)
    if node.endpoint.over:
        return 0
    print(f"error: operator at {node.superlink} is gone", file=sys.stderr)
    return 1


class _Contact:
    """When the operator was last reached."""

    def __init__(self, patience: float) -> None:
        self._patience, self._last = patience, time.monotonic()
        self.connected = False
        self._refusals = set[bytes]()

    def refused(self, answer: bytes, say: Callable[[str], None]) -> None:
        """Says a refusal, once, to the party whose it is."""
        fresh = answer not in self._refusals and len(self._refusals) < MOST_SAID
        if answer[:1] == REFUSED and fresh:
            self._refusals.add(answer)
            say(f"refused what the operator asked: {safe(answer[1:])}")

    def made(self) -> None:
        self._last = time.monotonic()

    def ends(self) -> None:
        """A connection that stood until now does not any more."""
        if self.connected:
            self.made()
        self.connected = False

    def lost(self) -> bool:
        """Whether the last contact is too long ago; an open connection is contact."""
        return not self.connected and time.monotonic() - self._last > self._patience


def _answer(node: Node, carrier: Child, contact: _Contact) -> None:
    """Until the endpoint is done or patience has ended.

    Raises:
        ConnectionError: the carrier has ended.
    """
    contact.ends()
    largest, look = 1 + node.endpoint.largest_frame, min(LOOK_SECONDS, node.patience / 4)
    while not node.endpoint.over and not contact.lost():
        frame = frames.receive(carrier.line, largest, look)
        if frame is None:
            continue
        if frame[:1] == frames.STATE:
            contact.ends()
            contact.connected = frame[1:] == frames.CONNECTED
            node.say(safe(frame[1:]))
        elif frame[:1] == frames.QUESTION:
            answer = node.endpoint.answer(frame[1:])
            contact.refused(answer, node.say)
            contact.made()  # after the answer: to make it may take longer than the patience
            frames.send(carrier.line, frames.ANSWER, answer)
    if node.endpoint.over:
        _delivered(carrier, largest)


def _delivered(carrier: Child, largest: int) -> None:
    """Waits until the carrier has brought the last answer: on an end of questions it ends too."""
    carrier.line.shutdown(socket.SHUT_WR)
    with contextlib.suppress(ConnectionError):
        while frames.receive(carrier.line, largest, DELIVER_SECONDS) is not None:
            pass
