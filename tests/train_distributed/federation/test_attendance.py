"""A party fetches questions, brings answers, and waits for its operator as long as it was told."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.train_distributed.federation import fake_relay as fake
from train_distributed.federation import attendance as attending
from train_distributed.federation import polling
from train_distributed.federation.attendance import alone, attend
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.orders import name_of_question

PATIENCE = 1.5


@dataclass
class Parrot:
    largest_frame: int = 1000
    over: bool = False
    heard: list[bytes] = field(default_factory=list)
    answers: Callable[[bytes], bytes] = lambda request: b"re: " + request

    def answer(self, request: bytes) -> bytes:
        self.heard.append(request)
        self.over = request == b"end"
        return self.answers(request)


class World(fake.Site):
    """A party, its operator's certificate, and what it says."""

    @property
    def heard(self) -> list[str]:
        """What it has said since the operator was there."""
        return [line for line in self.said if "nobody listens" not in line]

    def attends(self, endpoint: Parrot, **changes: Any) -> int:
        return attend(self.party(endpoint, **({"patience": PATIENCE} | changes)))

    @contextlib.contextmanager
    def attending(self, endpoint: Parrot, **changes: Any) -> Iterator[list[int]]:
        """Exit codes of a party that is there until it ends."""
        codes, work = list[int](), partial(self.attends, endpoint, **changes)
        thread = threading.Thread(target=lambda: codes.append(work()), daemon=True)
        thread.start()
        yield codes
        thread.join(60)
        assert not thread.is_alive()

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        """A relay, once the party is there."""
        with self.relay() as relay:
            deadline = time.monotonic() + 20
            while relay.nodes() != [1]:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield relay

    def visit(self, endpoint: Parrot, status: int, content: bytes) -> int:
        """Exit code where the service answers every poll with this."""
        party = self.party(endpoint, patience=0.1)
        answer = lambda _: httpx.Response(status, content=iter([content]))  # noqa: E731
        http = httpx.Client(transport=httpx.MockTransport(answer), base_url="https://h")
        return attending._Visit(party, partial(attending._posted, party, http)).run()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(attending, "RETRY_SECONDS", 0.05)
    return World(tmp_path)


def test_without_an_operator_it_gives_up(world: World, capsys) -> None:
    start = time.monotonic()
    assert world.attends(Parrot(), patience=0.5) == 1
    assert 0.5 <= time.monotonic() - start < 10
    assert "nobody listens" in world.said[0]
    assert f"error: operator at 127.0.0.1:{world.port} is gone" in capsys.readouterr().err


def test_it_ends_with_its_last_session_when_the_answer_has_arrived(world: World) -> None:
    endpoint = Parrot()
    with world.attending(endpoint) as codes, world.connected() as relay:
        for asked in (b"1", b"end"):
            assert dict(relay.ask_each({1: asked})) == {1: b"re: " + asked}
    assert (codes, endpoint.heard) == ([0], [b"1", b"end"])
    assert world.heard == ["connected"]


def test_an_operator_that_comes_back_in_time_finds_it(world: World) -> None:
    """Patience counts from the last contact: this takes longer than it in all."""
    endpoint = Parrot()
    with world.attending(endpoint) as codes:
        for asked in (b"1", b"2", b"end"):
            time.sleep(0.4 * PATIENCE)
            with world.connected() as relay:
                assert dict(relay.ask_each({1: asked})) == {1: b"re: " + asked}
    assert (codes, endpoint.heard) == ([0], [b"1", b"2", b"end"])


def test_an_answer_is_sent_again_until_it_has_arrived(world: World) -> None:
    """The operator is gone while the answer is made; the next one gets it to the same question."""

    def slowly(request: bytes) -> bytes:
        time.sleep(0.5 * (request == b"work"))
        return b"re: " + request

    endpoint = Parrot(answers=slowly)
    with world.attending(endpoint, patience=30) as codes:
        with world.connected() as relay:
            assert dict(relay.ask_each({1: b"work"}, seconds=0.25)) == {}
        with world.relay() as relay:
            for asked in (b"work", b"end"):
                assert dict(relay.ask_each({1: asked})) == {1: b"re: " + asked}
    assert (codes, endpoint.heard) == ([0], [b"work", b"end"])


def test_what_is_refused_is_said_once_and_escaped(world: World) -> None:
    endpoint = Parrot(answers=lambda request: b"\1no\x1b")
    with world.attending(endpoint), world.connected() as relay:
        for request in (b"1", b"2", b"end"):
            assert dict(relay.ask_each({1: request})) == {1: b"\1no\x1b"}
    assert world.heard == ["connected", "refused what the operator asked: no\\x1b"]


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (200, name_of_question(b"q" + bytes(2000)) + b"q" + bytes(2000), "must be <= 1000 bytes"),
        (200, bytes(32) + b"q", "question must have its own name"),
        (200, b"short", "question must have its own name"),
        (401, b"", "this party's key is not registered with the operator"),
        (404, b"", "the operator runs another federation"),
        (429, b"", "the operator refuses: 429"),
    ],
    ids=["long", "of another name", "short", "401", "404", "429"],
)
def test_what_is_no_question_is_refused_and_a_refusal_named(
    status: int, content: bytes, words: str, world: World
) -> None:
    endpoint = Parrot()
    assert world.visit(endpoint, status, content) == 1
    assert endpoint.heard == []
    assert words in world.said[0]


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("certificate verify failed: unable to get local issuer", "is not the one that was agreed"),
        ("certificate verify failed: certificate has expired", "has expired"),
        ("certificate verify failed: certificate is not yet valid", "clock is behind"),
        ("Hostname mismatch, certificate is not valid for 'x'", "is not for this address"),
        ("[Errno 111] Connection refused", "nobody listens"),
        (httpx.ReadTimeout(""), "the operator does not answer"),
    ],
)
def test_a_failed_connection_is_named(error: Any, cause: str) -> None:
    given = error if isinstance(error, Exception) else httpx.ConnectError(error)
    assert cause in attending._cause(given)


def test_another_authority_is_not_believed(world: World, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_certificate(other, ["127.0.0.1"])
    with world.relay():
        assert world.attends(Parrot(), certificates=other / "server.pem", patience=0.3) == 1
    assert "is not the one that was agreed on" in world.said[0]


def test_a_service_that_ends_does_not_keep_a_party_busy(world: World, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.0)
    with world.attending(Parrot(), patience=0.1) as codes, world.connected() as relay:
        polls, take = list[Any](), relay._take
        monkeypatch.setattr(relay, "_take", lambda poll: (polls.append(poll), take(poll)))
        time.sleep(1.5)
    assert len(polls) < 5
    assert codes == [1]


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *(
            ("address", each, f"address must be HOST:PORT, got '{each}'")
            for each in ("example.org", ":9092", "example.org:https", "example.org:65536")
        ),
        ("certificates", Path("nowhere.pem"), r"nowhere\.pem must be a file, got nothing there"),
    ],
)
def test_what_leads_to_no_operator_is_refused(
    name: str, given: Any, message: str, world: World
) -> None:
    with pytest.raises(ValueError, match=message):
        world.attends(Parrot(), **{name: given})


def test_one_process_of_a_party_takes_part(tmp_path: Path) -> None:
    words = "must be one process's, another one takes part"
    with alone(tmp_path), pytest.raises(ValueError, match=words), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass
