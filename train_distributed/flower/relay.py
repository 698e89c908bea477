"""The operator's end of the line to the hub: a `Relay` over Flower."""

import json
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pretrain.cli.json_text import parsed
from train_distributed.flower.documents.party import node_fingerprint
from train_distributed.flower.orders import REFUSED
from train_distributed.flower.transport import frames
from train_distributed.flower.transport.processes import Child, child

START_SECONDS = 120.0
GRACE_SECONDS = 30.0  # for the hub to say who is here
UNDER_WAY = 2**28  # bytes of answers that may be under way at once


class FlowerRelay:
    """Asks nodes through a hub, at most a window of them at once.

    Raises:
        ConnectionError: the hub is gone; its words, if it left any.
    """

    def __init__(self, hub: Child, keys: list[str], seconds: float, largest: int) -> None:
        """Waits until the hub serves.

        Args:
            hub: the running process.
            keys: fingerprints of the nodes' keys, in the order the hub was given them.
            seconds: that a node has to answer.
            largest: bytes of an answer.
        """
        self._hub, self._seconds, self._largest = hub, seconds, largest
        self._awaited: set[int] = set()
        self._arrived: dict[int, bytes] = {}
        self._here: list[list[int]] = []
        frame = frames.receive(hub.line, 2**24, START_SECONDS)
        if frame is None or frame[:1] != frames.READY:
            words = "nothing" if frame is None else frame[1:].decode(errors="replace")
            raise ConnectionError(f"SuperLink must start, said: {words}")
        ready = json.loads(frame[1:])
        self._keys = dict(zip(ready["nodes"], keys, strict=True))
        self.confined: bool = ready["confined"]

    def nodes(self) -> dict[int, str]:
        """Node -> fingerprint of its key, of those that are connected now."""
        self._here.clear()
        frames.send(self._hub.line, frames.WHO)
        deadline = time.monotonic() + GRACE_SECONDS
        while not self._here:
            if not self._file(deadline - time.monotonic()):
                raise ConnectionError(f"hub must answer within {GRACE_SECONDS} s, did not")
        return {node: self._keys[node] for node in self._here.pop()}

    def ask_each(
        self, requests: Mapping[int, bytes], seconds: float | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """(node, answer) as they come; other nodes may be asked meanwhile.

        Args:
            requests: by node.
            seconds: for each to answer; the relay's own if left out.
        """
        waiting, deadlines = list(requests), dict[int, float]()
        window = max(16, UNDER_WAY // self._largest)
        try:
            while waiting or deadlines:
                while waiting and len(deadlines) < window:
                    node = waiting.pop(0)
                    self._send(node, requests[node])
                    deadlines[node] = time.monotonic() + (seconds or self._seconds)
                yield from self._wait(deadlines)
        finally:
            for node in deadlines:
                self._forget(node)

    def _send(self, node: int, request: bytes) -> None:
        if len(request) > self._largest:
            raise ValueError(f"request must be <= {self._largest} bytes, got {len(request)}")
        self._arrived.pop(node, None)
        self._awaited.add(node)
        frames.send(self._hub.line, frames.ASK, frames.NODE.pack(node), request)

    def _forget(self, node: int) -> None:
        self._awaited.discard(node)
        frames.send(self._hub.line, frames.FORGET, frames.NODE.pack(node))

    def _wait(self, deadlines: dict[int, float]) -> Iterator[tuple[int, bytes]]:
        """Those that have arrived; waits for one, or for the first deadline."""
        while self._file(0):
            pass
        if not any(node in self._arrived for node in deadlines):
            self._file(min(deadlines.values()) - time.monotonic())
        for node in [node for node in deadlines if node in self._arrived]:
            answer = self._arrived.pop(node)
            self._awaited.discard(node)
            del deadlines[node]
            yield node, answer
        now = time.monotonic()
        for node in [node for node, deadline in deadlines.items() if deadline <= now]:
            del deadlines[node]
            self._forget(node)

    def _file(self, seconds: float) -> bool:
        """Takes one frame of the hub's, if one comes in time; what nobody waits for is dropped.

        Raises:
            ConnectionError: the hub has ended, or talks nonsense.
        """
        frame = frames.receive(self._hub.line, 1 + frames.NODE.size + self._largest, seconds)
        if frame is None:
            return False
        kind, body = frame[:1], frame[1:]
        if kind == frames.FAILED:
            raise ConnectionError(f"SuperLink ended: {body.decode(errors='replace')}")
        try:
            if kind == frames.HERE:
                self._here.append([node for node in parsed(body) if node in self._keys])
                return True
            (node,) = frames.NODE.unpack_from(body)
        except (ValueError, TypeError, struct.error) as error:
            raise ConnectionError(f"hub must speak as agreed, did not: {error}") from error
        if node in self._awaited:
            refused = REFUSED if kind == frames.BAD else b""
            self._arrived[node] = refused + body[frames.NODE.size :]
        return True


@contextmanager
def open_relay(
    config: dict[str, Any], nodes: tuple[Path, ...], seconds: float, log: Path
) -> Iterator[FlowerRelay]:
    """A hub and the relay over it; both end with the block.

    Args:
        config: host, port, certificate and key (files), largest (bytes).
        nodes: node-key.pub of every party.
        seconds: that a node has to answer.
        log: file for the hub's output.

    Raises:
        ConnectionError: the hub does not start, in its own words.
        ValueError: a file that is not a node's key, or one key twice.
    """
    keys = [node_fingerprint(path) for path in nodes]
    twice = {str(path) for path, key in zip(nodes, keys, strict=True) if keys.count(key) > 1}
    if twice:
        raise ValueError(f"nodes must have distinct keys, got one twice: {sorted(twice)}")
    config = config | {"nodes": [path.read_text() for path in nodes]}
    with child("operator_server", config, log) as hub:
        yield FlowerRelay(hub, keys, seconds, config["largest"])
