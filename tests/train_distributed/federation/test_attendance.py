"""A party fetches questions, brings answers, and waits for its operator as long as it was told."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port
from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation import attendance as attending
from train_distributed.federation import polling
from train_distributed.federation.attendance import Attendance, alone, attend
from train_distributed.federation.documents.certificates import serving, write_certificate
from train_distributed.federation.orders import name_of_question
from train_distributed.federation.polling import open_relay

PATIENCE = 1.5


@dataclass
class Parrot:
    largest_frame: int = 1000
    over: bool = False
    heard: list[bytes] = field(default_factory=list)

    def answer(self, request: bytes) -> bytes:
        self.heard.append(request)
        self.over = request == b"end"
        return b"re: " + request


class World:
    """A party, its operator's certificate, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port, self.said = folder, free_port(), list[str]()
        self.federation = fake.agreement()
        write_certificate(folder, ["127.0.0.1"])

    @property
    def heard(self) -> list[str]:
        """What it has said since the operator was there."""
        return [line for line in self.said if "nobody listens" not in line]

    def party(self, endpoint: Any, **changes: Any) -> Attendance:
        given = {
            "endpoint": endpoint,
            "federation": self.federation,
            "party": 1,
            "keys": fake.KEYS[1],
            "address": f"127.0.0.1:{self.port}",
            "certificates": self.folder / "server.pem",
            "patience": PATIENCE,
            "say": self.said.append,
        }
        return Attendance(**(given | changes))

    @contextmanager
    def attending(self, endpoint: Any, **changes: Any) -> Iterator[list[int]]:
        """Exit codes of a party that is there until it ends."""
        codes = list[int]()
        party = self.party(endpoint, **changes)
        thread = threading.Thread(target=lambda: codes.append(attend(party)), daemon=True)
        thread.start()
        yield codes
        thread.join(60)
        assert not thread.is_alive()

    def relay(self):
        tls = serving(self.folder, self.folder / "server.pem")
        return open_relay(self.federation, tls, "127.0.0.1", self.port)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(attending, "RETRY_SECONDS", 0.05)
    return World(tmp_path)


def _come(relay: Any) -> None:
    deadline = time.monotonic() + 20
    while relay.nodes() != [1]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_without_an_operator_it_gives_up(world: World, capsys) -> None:
    start = time.monotonic()
    assert attend(world.party(Parrot())) == 1
    assert PATIENCE <= time.monotonic() - start < 20 * PATIENCE
    assert "nobody listens" in world.said[0]
    assert f"error: operator at 127.0.0.1:{world.port} is gone" in capsys.readouterr().err


def test_it_ends_with_its_last_session_when_the_answer_has_arrived(world: World) -> None:
    endpoint = Parrot()
    with world.attending(endpoint) as codes, world.relay() as relay:
        _come(relay)
        assert dict(relay.ask_each({1: b"1"})) == {1: b"re: 1"}
        assert dict(relay.ask_each({1: b"end"})) == {1: b"re: end"}
    assert (codes, endpoint.heard) == ([0], [b"1", b"end"])
    assert world.heard == ["connected"]


def test_an_operator_that_comes_back_in_time_finds_it(world: World) -> None:
    """Patience counts from the last contact: this takes longer than it in all."""
    endpoint = Parrot()
    with world.attending(endpoint) as codes:
        for _ in range(3):
            time.sleep(0.6 * PATIENCE)
            with world.relay() as relay:
                _come(relay)
                assert dict(relay.ask_each({1: b"again"})) == {1: b"re: again"}
    assert codes == [1]
    assert endpoint.heard == [b"again"] * 3


def test_an_answer_is_sent_again_until_it_has_arrived(world: World, monkeypatch) -> None:
    """The operator is gone while the answer is made; the next one gets it to the same question."""

    class Slow(Parrot):
        def answer(self, request: bytes) -> bytes:
            if request == b"work":
                time.sleep(1)
            return super().answer(request)

    endpoint = Slow()
    with world.attending(endpoint, patience=30) as codes:
        with world.relay() as relay:
            _come(relay)
            assert dict(relay.ask_each({1: b"work"}, seconds=0.5)) == {}
        with world.relay() as relay:
            assert dict(relay.ask_each({1: b"work"})) == {1: b"re: work"}
            assert dict(relay.ask_each({1: b"end"})) == {1: b"re: end"}
    assert codes == [0]
    assert endpoint.heard == [b"work", b"end"]


def test_what_is_refused_is_said_once_and_escaped(world: World) -> None:
    class Refusing(Parrot):
        def answer(self, request: bytes) -> bytes:
            super().answer(request)
            return b"\1no\x1b"

    with world.attending(Refusing()), world.relay() as relay:
        _come(relay)
        for request in (b"1", b"2", b"end"):
            assert dict(relay.ask_each({1: request})) == {1: b"\1no\x1b"}
    assert world.heard == ["connected", "refused what the operator asked: no\\x1b"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (lambda q: name_of_question(q) + q + bytes(2000), "question must be <= 1000 bytes"),
        (lambda q: bytes(32) + q, "question must have its own name"),
        (lambda q: b"short", "question must have its own name"),
    ],
)
def test_what_is_no_question_is_refused(
    content: Callable[[bytes], bytes], words: str, world: World, monkeypatch
) -> None:
    endpoint = Parrot()
    assert _visit(world.party(endpoint), 200, content(b"q")).run() == 1
    assert endpoint.heard == []
    assert words in world.said[0]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (401, "this party's key is not registered with the operator"),
        (404, "the operator runs another federation"),
        (429, "the operator refuses: 429"),
    ],
)
def test_a_refusal_is_named(status: int, words: str, world: World) -> None:
    assert _visit(world.party(Parrot()), status, b"").run() == 1
    assert words in world.said[0]


def _visit(party: Attendance, status: int, content: bytes) -> attending._Visit:
    transport = httpx.MockTransport(lambda _: httpx.Response(status, content=iter([content])))
    http = httpx.Client(transport=transport, base_url="https://h")
    return attending._Visit(party, partial(attending._posted, party, http))


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (
            "certificate verify failed: unable to get local issuer",
            "is not the one that was agreed on",
        ),
        (
            "certificate verify failed: self-signed certificate in chain",
            "is not the one that was agreed on",
        ),
        ("certificate verify failed: certificate has expired", "has expired"),
        ("certificate verify failed: certificate is not yet valid", "clock is behind"),
        ("Hostname mismatch, certificate is not valid for 'x'", "is not for this address"),
        ("IP address mismatch, certificate is not valid for '::1'", "is not for this address"),
        ("[Errno 111] Connection refused", "nobody listens"),
    ],
)
def test_a_failed_connection_is_named(words: str, cause: str) -> None:
    assert cause in attending._cause(httpx.ConnectError(words))


def test_an_operator_that_does_not_answer_is_named() -> None:
    assert attending._cause(httpx.ReadTimeout("")) == "the operator does not answer"


def test_another_authority_is_not_believed(world: World, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    write_certificate(tmp_path / "other", ["127.0.0.1"])
    with world.relay():
        assert attend(world.party(Parrot(), certificates=tmp_path / "other" / "server.pem")) == 1
    assert "is not the one that was agreed on" in world.said[0]


def test_a_service_that_ends_does_not_keep_a_party_busy(world: World, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.0)
    with world.attending(Parrot(), patience=0.5) as codes, world.relay() as relay:
        _come(relay)
        polls, take = list[Any](), relay._take
        monkeypatch.setattr(relay, "_take", lambda poll: (polls.append(poll), take(poll)))
        time.sleep(2)
    assert len(polls) < 5
    assert codes == [1]


@pytest.mark.parametrize(
    "address", ["example.org", ":9092", "example.org:https", "example.org:65536"]
)
def test_an_address_without_a_port_is_refused(world: World, address: str) -> None:
    with pytest.raises(ValueError, match=f"address must be HOST:PORT, got '{address}'"):
        attend(world.party(Parrot(), address=address))


def test_a_missing_certificate_is_named(world: World) -> None:
    with pytest.raises(ValueError, match=r"nowhere\.pem must be a file, got nothing there"):
        attend(world.party(Parrot(), certificates=world.folder / "nowhere.pem"))


def test_one_process_of_a_party_takes_part(tmp_path: Path) -> None:
    words = "must be one process's, another one takes part"
    with alone(tmp_path), pytest.raises(ValueError, match=words), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
