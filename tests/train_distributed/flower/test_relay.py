"""The operator's line to its hub: a window of questions, time-outs, refusals, a hub that dies."""

import json
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from train_distributed.flower import relay as relays
from train_distributed.flower.relay import FlowerRelay
from train_distributed.flower.transport import frames

NODES = list(range(1, 101))
LARGEST = 1000
Reply = Callable[[int, bytes], bytes | None]


class Hub:
    """Answers what is asked when it is told to, and counts what is under way."""

    def __init__(self, line: Any, reply: Reply, after: int) -> None:
        self.line, self.reply, self.after = line, reply, after
        self.under_way: dict[int, bytes] = {}
        self.most = 0
        self.forgotten: list[int] = []

    def serve(self) -> None:
        try:
            frames.send(self.line, b"r", json.dumps({"nodes": NODES, "confined": True}).encode())
            while True:
                frame = frames.receive(self.line, 2 * LARGEST, 0.05)
                if frame is not None:
                    self.take(frame[:1], frame[1:])
                if len(self.under_way) >= self.after or frame is None:
                    for node, request in list(self.under_way.items()):
                        answer = self.reply(node, request)
                        if answer is not None:
                            del self.under_way[node]
                            frames.send(
                                self.line, answer[:1] + struct.pack(">Q", node) + answer[1:]
                            )
        except OSError:
            return

    def take(self, kind: bytes, body: bytes) -> None:
        if kind == b"w":
            frames.send(self.line, b"h", json.dumps(NODES[:3]).encode())
            return
        (node,) = struct.unpack(">Q", body[:8])
        if kind == b"f":
            self.forgotten.append(node)
            self.under_way.pop(node, None)
        else:
            self.under_way[node] = body[8:]
            self.most = max(self.most, len(self.under_way))


@contextmanager
def _relay(reply: Reply, *, after: int = 1, seconds: float = 30) -> Iterator[tuple[Any, Hub]]:
    here, there = frames.socket.socketpair()
    with here, there:
        hub = Hub(there, reply, after)
        thread = threading.Thread(target=hub.serve, daemon=True)
        thread.start()
        keys = [f"{node:064x}" for node in NODES]
        child: Any = SimpleNamespace(line=here)
        yield FlowerRelay(child, keys, seconds, LARGEST), hub
        here.shutdown(frames.socket.SHUT_RDWR)
        thread.join(10)


def test_no_more_answers_than_a_window_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relays, "UNDER_WAY", 20 * LARGEST)
    with _relay(lambda node, request: b"a" + request[::-1], after=20) as (relay, hub):
        found = dict(relay.ask_each({node: b"q%d" % node for node in NODES}))
    assert found == {node: (b"q%d" % node)[::-1] for node in NODES}
    assert hub.most == 20


def test_silence_and_refusals_are_told_apart() -> None:
    def reply(node: int, request: bytes) -> bytes | None:
        return None if node == 3 else b"bno" if node == 4 else b"a" + request

    with _relay(reply, seconds=1) as (relay, hub):
        assert relay.nodes() == {node: f"{node:064x}" for node in NODES[:3]}
        start = time.monotonic()
        assert dict(relay.ask_each({1: b"x", 3: b"y", 4: b"z"})) == {1: b"x", 4: b"\1no"}
        assert 1 <= time.monotonic() - start < 10
        assert dict(relay.ask_each({3: b"again", 5: b"w"})) == {5: b"w"}
        with pytest.raises(ValueError, match="request must be <= 1000 bytes, got 1001"):
            dict(relay.ask_each({5: bytes(1001)}))
    assert 3 in hub.forgotten


def test_others_can_be_asked_while_answers_come() -> None:
    with _relay(lambda node, request: b"a" + request, after=1) as (relay, _):
        found = []
        for node, answer in relay.ask_each({node: b"%d" % node for node in range(1, 9)}):
            assert dict(relay.ask_each({50: b"inner"})) == {50: b"inner"}
            found.append((node, answer))
    assert sorted(found) == [(node, b"%d" % node) for node in range(1, 9)]


@contextmanager
def _ready() -> Iterator[tuple[FlowerRelay, Any]]:
    """A relay, and the hub's end of its line."""
    here, there = frames.socket.socketpair()
    with here, there:
        frames.send(there, frames.READY, json.dumps({"nodes": NODES, "confined": True}).encode())
        child: Any = SimpleNamespace(line=here)
        yield FlowerRelay(child, [f"{node:064x}" for node in NODES], 30, LARGEST), there


def test_a_hub_that_fails_is_quoted_and_one_that_hangs_up_is_noticed() -> None:
    with _ready() as (relay, there):
        frames.send(there, b"ePort is taken")
        with pytest.raises(ConnectionError, match="SuperLink ended: Port is taken"):
            dict(relay.ask_each({1: b"x"}))
    with _ready() as (relay, there):
        there.shutdown(frames.socket.SHUT_WR)
        with pytest.raises(ConnectionError, match="hung up"):
            dict(relay.ask_each({1: b"x"}))


@pytest.mark.parametrize("nonsense", [b"h{", b"h7", b"a", b"b123"])
def test_a_hub_that_talks_nonsense_is_gone(nonsense: bytes) -> None:
    with _ready() as (relay, there):
        frames.send(there, nonsense)
        with pytest.raises(ConnectionError, match="hub must speak as agreed"):
            relay.nodes()


def test_what_was_not_asked_is_not_kept() -> None:
    with _ready() as (relay, there):
        for node in range(50):
            frames.send(there, b"a" + struct.pack(">Q", node), bytes(100))
        frames.send(there, b"h" + json.dumps([3, 500]).encode())
        assert relay.nodes() == {3: f"{3:064x}"}
        assert relay._arrived == {}
