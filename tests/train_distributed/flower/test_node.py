"""A node waits for its operator as long as it was told, counted from the last contact."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port
from train_distributed.flower import supernode as nodes
from train_distributed.flower.supernode import Node, serve
from train_distributed.flower.transport import frames

PATIENCE = 1.5


@dataclass
class Parrot:
    largest_frame: int = 1000
    poll_seconds: float = 0.2
    over: bool = False
    heard: list[bytes] = field(default_factory=list)

    def answer(self, request: bytes) -> bytes:
        self.heard.append(request)
        self.over = request == b"end"
        return b"re: " + request


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("ca.pem", "node-key"):
        (tmp_path / name).touch()
    monkeypatch.setattr(nodes, "RESTART_SECONDS", 0.05)
    monkeypatch.setattr(nodes, "hide_memory", lambda: None)
    return tmp_path


def _scripted(monkeypatch: pytest.MonkeyPatch, lives: list[list[tuple[float, bytes]]]) -> list[Any]:
    """Carriers that say what the script tells, each after so many seconds, and then end."""
    started: list[Any] = []

    @contextmanager
    def child(module: str, config: dict[str, Any], log: Path | None) -> Iterator[Any]:
        started.append(config)
        here, there = frames.socket.socketpair()
        script = lives[len(started) - 1] if len(started) <= len(lives) else []

        def play() -> None:
            with there, suppress(OSError):
                for seconds, frame in script:
                    time.sleep(seconds)
                    frames.send(there, frame)
                if not script:
                    time.sleep(10)

        threading.Thread(target=play, daemon=True).start()
        with here:
            yield nodes.Child(None, here)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(nodes, "child", child)
    return started


def _node(keys: Path, endpoint: Any, said: list[str]) -> Node:
    return Node(endpoint, "127.0.0.1:9", keys / "ca.pem", keys, PATIENCE, None, said.append)


def test_without_an_operator_it_gives_up(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _scripted(monkeypatch, [])
    start = time.monotonic()
    assert serve(_node(keys, Parrot(), [])) == 1
    assert PATIENCE <= time.monotonic() - start < 20 * PATIENCE


def test_patience_counts_from_the_last_contact(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connected for longer than its patience, then without an operator: it waits once more."""
    lives = [
        [(0.1, b"sconnected"), (1.5 * PATIENCE, b"snobody listens"), (0.4 * PATIENCE, b"q1")],
        [(0.4 * PATIENCE, b"q2")],
    ]
    _scripted(monkeypatch, lives)
    endpoint, said = Parrot(), list[str]()
    start = time.monotonic()
    assert serve(_node(keys, endpoint, said)) == 1
    assert time.monotonic() - start > 3.2 * PATIENCE
    assert endpoint.heard == [b"1", b"2"]
    assert "nobody listens" in said


def test_it_ends_with_its_last_session(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = _scripted(monkeypatch, [[(0, b"sconnected"), (0.05, b"qend")]])
    assert serve(_node(keys, Parrot(), [])) == 0
    assert set(started[0]) == {"address", "ca", "key", "largest", "poll"}


def test_it_leaves_after_its_last_answer_is_delivered(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow network: an operator that never hears the answer would wait for it in vain."""
    delivered: list[bytes] = []

    @contextmanager
    def child(module: str, config: dict[str, Any], log: Path | None) -> Iterator[Any]:
        here, there = frames.socket.socketpair()

        def play() -> None:
            with there:
                frames.send(there, b"qend")
                answer = frames.receive(there, 1000)
                time.sleep(0.5)
                frames.send(there, b"sthe operator does not answer")
                time.sleep(0.5)
                assert frames.hung_up(there)  # nothing more is wanted
                delivered.append(answer or b"")

        threading.Thread(target=play, daemon=True).start()
        with here:
            yield nodes.Child(None, here)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(nodes, "child", child)
    assert serve(_node(keys, Parrot(), [])) == 0
    assert delivered == [b"are: end"]


def test_words_of_a_carrier_are_escaped(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    _scripted(monkeypatch, [[(0, b"s\x1b[2J\xff\n"), (0.05, b"qend")]])
    serve(_node(keys, Parrot(), said))
    assert said[0] == "\\x1b[2J\\\\xff\\n"


def test_what_is_refused_is_said_once(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(Parrot):
        def answer(self, request: bytes) -> bytes:
            super().answer(request)
            return b"\1no\x1b"

    said: list[str] = []
    _scripted(monkeypatch, [[(0, b"q1"), (0, b"q2"), (0.05, b"qend")]])
    assert serve(_node(keys, Refusing(), said)) == 0
    assert [line for line in said if "refused" in line] == [
        "refused what the operator asked: no\\x1b"
    ]


def test_a_frame_that_is_too_long_ends_the_carrier(
    keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    _scripted(monkeypatch, [[(0, b"q" + bytes(2000))], [(0, b"qend")]])
    endpoint = Parrot()
    assert serve(_node(keys, endpoint, said)) == 0
    assert endpoint.heard == [b"end"]
    assert "frame must be <= 1001 bytes, got 2001" in said[0]


@pytest.mark.parametrize(
    "superlink", ["example.org", ":9092", "example.org:https", "example.org:65536"]
)
def test_an_address_without_a_port_is_refused(keys: Path, superlink: str) -> None:
    node = Node(Parrot(), superlink, keys / "ca.pem", keys)
    with pytest.raises(ValueError, match=f"address must be HOST:PORT, got '{superlink}'"):
        serve(node)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    node = Node(Parrot(), f"127.0.0.1:{free_port()}", tmp_path / "ca.pem", tmp_path)
    with pytest.raises(ValueError, match="must be a file, is not"):
        serve(node)
