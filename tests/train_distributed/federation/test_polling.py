"""Polls: who is let in, what is read, how long a party waits, and through which proxy."""

import base64
import contextlib
import hashlib
import socket
import ssl
import sys
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
from tests.train_distributed.federation.fake_relay import in_thread
from train_distributed.federation import aggregator_server, polling
from train_distributed.federation import attendance as attending
from train_distributed.federation.aggregator_limits import SUMMARY
from train_distributed.federation.attendance import alone, attend
from train_distributed.federation.documents.certificates import trust, write_certificate
from train_distributed.federation.orders import NO_QUESTION, Poll, name_of_question, write_poll
from train_distributed.federation.polling import Polls
from train_distributed.federation.proxies import client, is_own, proxy_for
from train_distributed.secure_sum.keys import FIRST_SERVER

SECONDS, PATIENCE = 20.0, 1.5
STRANGE = ("/", "/docs", "/openapi.json", f"/relay/{'0' * 64}", f"/tasks/{'0' * 64}/reports")


class Service(fake.Site):
    """A relay that listens, and lines to it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        tls = ssl.create_default_context(cafile=str(folder / "server.pem"))
        self.http = httpx.Client(base_url=f"https://127.0.0.1:{self.port}", verify=tls, timeout=30)
        self.path = f"/relay/{self.federation.digest.hex()}"
        self.listening: Any = None

    def poll(
        self, party: int, name: bytes = NO_QUESTION, answer: bytes = b"", **changes: Any
    ) -> httpx.Response:
        federation = changes.get("federation", self.federation)
        keys = fake.KEYS[changes.get("signer", party)]
        body, header = write_poll(federation, Poll(party, name, answer), keys)
        return self.post(body, header if changes.get("shown", True) else b"")

    def post(self, body: Any, header: bytes = b"") -> httpx.Response:
        headers = {SUMMARY: base64.b64encode(header).decode()} if header else {}
        return self.http.post(self.path, content=body, headers=headers)

    def asked(self, requests: dict[int, bytes], **more: Any) -> tuple[threading.Thread, list]:
        found: list[tuple[int, bytes]] = []

        def ask() -> None:
            with contextlib.suppress(ConnectionError):  # the service may end before
                found.extend(self.listening.ask_each(requests, **more))

        thread = in_thread(ask)
        while not requests.keys() <= self.listening._asked.keys():
            time.sleep(0.001)
        return thread, found

    def polled(self, party: int) -> tuple[threading.Thread, list[int]]:
        found: list[int] = []
        return in_thread(lambda: found.append(self.poll(party).status_code)), found


def wait_for(relay: Polls, *parties: int) -> None:
    deadline = time.monotonic() + SECONDS
    while relay.nodes() != [*parties]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Service]:
    made = Service(folder)
    with made.relay() as made.listening, made.http:
        yield made


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.1)
    with serving(tmp_path) as made:
        yield made


@pytest.mark.parametrize("shown", [True, False])
def test_an_answer_counts_for_the_question_that_it_names(shown: bool, service: Service) -> None:
    """Once: neither early nor late, nor again. Asking consumes nothing."""
    first, second = name_of_question(b"first"), hashlib.sha256(b"second").digest()
    poll = partial(service.poll, 2, shown=shown)
    assert poll(first, b"early").status_code == 204
    assert service.listening.nodes() == [2]
    thread, found = service.asked({2: b"first"})
    for _ in range(2):
        fetched = poll()
        assert (fetched.status_code, fetched.content) == (200, first + b"first")
    poll(second, b"of another")
    assert poll(first, b"answer").status_code == 204
    thread.join(SECONDS)
    poll(first, b"again")
    thread, more = service.asked({2: b"second"})
    assert poll().content == second + b"second"
    poll(first, b"late")
    poll(second, b"")
    thread.join(SECONDS)
    assert (found, more) == ([(2, b"answer")], [(2, b"")])


def test_whoever_polls_is_proven(service: Service) -> None:
    other = fake.agreement(minimum=4)
    thread, found = service.asked({2: b"question"}, seconds=1.0)
    name = name_of_question(b"question")
    body, header = write_poll(service.federation, Poll(2, name, b"x"), fake.KEYS[2])
    refused = [service.post(body[:-1] + b"y", header)]
    for shown in (True, False):
        refused += [
            service.poll(2, name, b"x", signer=3, shown=shown),
            service.poll(2, name, b"x", federation=other, shown=shown),
            service.poll(99, name, b"x", signer=3, shown=shown),
            service.poll(FIRST_SERVER, name, b"x", shown=shown),
            service.post(b""),
            service.post(bytes(99)),
        ]
    assert [each.status_code for each in refused] == [401] * len(refused)
    for path in (*STRANGE, f"/invitations/{service.federation.digest.hex()}/private.json"):
        assert service.http.post(path, content=b"").status_code == 404
    assert service.http.get(service.path).status_code == 405
    thread.join(SECONDS)
    assert (found, service.listening.nodes()) == ([], [])
    assert service.http.get("/healthz").status_code == 204


def test_sizes_are_judged_before_a_body_is_read(service: Service) -> None:
    largest = service.federation.largest_frame
    assert service.poll(0, answer=bytes(largest)).status_code == 204
    assert service.poll(0, answer=bytes(largest + 1)).status_code == 413
    assert service.post(iter([b"x"])).status_code == 411
    with pytest.raises(ValueError, match=f"request must be <= {largest} bytes, got {largest + 1}"):
        dict(service.listening.ask_each({0: bytes(largest + 1)}))


def test_polls_of_one_party_that_wait_are_few(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    monkeypatch.setattr(polling, "MOST_POLLS", 2)
    polls = [service.polled(0) for _ in range(4)]
    while sum(map(len, (found for _, found in polls))) < 2:
        time.sleep(0.01)
    service.asked({0: b"wakes both", 1: b"has a place"})
    assert service.poll(1).status_code == 200
    for thread, _ in polls:
        thread.join(SECONDS)
    assert sorted(found for _, found in polls) == [[200], [200], [429], [429]]


def test_silence_costs_its_own_time_and_others_are_asked_meanwhile(service, monkeypatch) -> None:
    start = time.monotonic()
    thread, found = service.asked({0: b"a", 1: b"b"}, seconds=1.0)
    service.poll(1, service.poll(1).content[:32], b"of b")
    while not found:
        time.sleep(0.01)
    inner, more = service.asked({1: b"c"})
    service.poll(1, service.poll(1).content[:32], b"of c")
    inner.join(SECONDS)
    thread.join(SECONDS)
    assert (found, more) == ([(1, b"of b")], [(1, b"of c")])
    assert time.monotonic() - start >= 1
    assert service.poll(0).status_code == 204  # what was not answered in time is taken back
    assert service.listening.nodes() == [0, 1]
    monkeypatch.setattr(polling, "AWAY_SECONDS", 0.05)
    time.sleep(0.1)
    assert service.listening.nodes() == []  # who does not poll is away


def test_no_more_than_a_window_is_under_way(service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "UNDER_WAY", 0)
    ask, under_way = Polls._ask, list[int]()

    def counted(self: Polls, party: int, question: bytes) -> None:
        ask(self, party, question)
        under_way.append(len(self._asked))

    monkeypatch.setattr(Polls, "_ask", counted)
    assert not list(service.listening.ask_each(dict.fromkeys(range(40), b"x"), seconds=0.1))
    assert (len(under_way), max(under_way)) == (40, 16)


def test_a_service_that_ends_answers_whoever_waits(service: Service, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    waiting, found = service.polled(0)
    wait_for(service.listening, 0)
    service.listening.end("the disk is full")
    with pytest.raises(ConnectionError, match="service must listen, ended: the disk is full"):
        dict(service.listening.ask_each({0: b"x"}))
    waiting.join(SECONDS)
    assert found == [204]


def test_a_party_keeps_its_line_where_strangers_take_all_others(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(aggregator_server, "MOST_TLS_LINES", 4)
    monkeypatch.setattr(polling, "POLL_SECONDS", 60.0)
    with serving(tmp_path) as service, contextlib.ExitStack() as stack:
        waiting, status = service.polled(0)
        wait_for(service.listening, 0)
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port)))
        monkeypatch.setattr(polling, "POLL_SECONDS", 0.1)
        assert service.poll(1).status_code == 204  # who comes now finds a place
        service.asked({0: b"question"})
        waiting.join(SECONDS)
        assert status == [200]


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

    def attends(self, endpoint: Parrot, **changes: Any) -> int:
        given: dict[str, Any] = {"patience": PATIENCE} | changes
        return attend(self.party(endpoint, **given))

    @contextlib.contextmanager
    def attending(self, endpoint: Parrot, **changes: Any) -> Iterator[list[int]]:
        """Exit codes of a party that is there until it ends."""
        codes, work = list[int](), partial(self.attends, endpoint, **changes)
        thread = in_thread(lambda: codes.append(work()))
        yield codes
        thread.join(60)
        assert not thread.is_alive()

    @contextlib.contextmanager
    def connected(self) -> Iterator[Any]:
        with self.relay() as relay:
            wait_for(relay, 1)
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
def test_what_is_no_question_is_refused_and_a_refusal_named(status, content, words, world) -> None:
    endpoint = Parrot()
    assert world.visit(endpoint, status, content) == 1
    assert endpoint.heard == []
    assert words in world.said[0]


def test_a_failed_connection_is_named() -> None:
    certificate = "certificate verify failed: certificate"
    for error, cause in (
        (httpx.ConnectError(f"{certificate} has expired"), "has expired"),
        (httpx.ConnectError(f"{certificate} is not yet valid"), "clock is behind"),
        (httpx.ConnectError("Hostname mismatch, certificate is not valid"), "not for this address"),
        (httpx.ConnectError("[Errno 111] Connection refused"), "nobody listens"),
        (httpx.ReadTimeout(""), "the operator does not answer"),
    ):
        assert cause in attending._cause(error)


def test_another_authority_is_not_believed_and_refusals_are_said_once(world, tmp_path) -> None:
    (other := tmp_path / "other").mkdir()
    write_certificate(other, ["127.0.0.1"])
    endpoint = Parrot(answers=lambda request: b"\1no\x1b")
    with world.relay():
        with pytest.raises(OSError, match=r"listen must be a free port .* in use"), world.relay():
            pass
        assert world.attends(endpoint, certificates=other / "server.pem", patience=0.3) == 1
    assert "is not the one that was agreed on" in world.said.pop(0)
    with world.attending(endpoint), world.connected() as relay:
        for request in (b"1", b"2", b"end"):
            assert dict(relay.ask_each({1: request})) == {1: b"\1no\x1b"}
    heard = [line for line in world.said if "nobody listens" not in line]
    assert heard == ["connected", "refused what the operator asked: no\\x1b"]


def test_a_service_that_ends_does_not_keep_a_party_busy(world: World, monkeypatch) -> None:
    monkeypatch.setattr(polling, "POLL_SECONDS", 0.0)
    with world.attending(Parrot(), patience=0.5) as codes, world.connected() as relay:
        polls, take = list[Any](), relay._take
        monkeypatch.setattr(relay, "_take", lambda poll: (polls.append(poll), take(poll)))
        time.sleep(1.1)
    assert len(polls) < 5
    assert codes == [1]


def test_one_process_of_a_party_takes_part(tmp_path: Path) -> None:
    words = "must be one process's, another one takes part"
    with alone(tmp_path), pytest.raises(ValueError, match=words), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


TLS = trust(None)


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def through(host: str) -> str:
    made, words = client(host, TLS)
    made.close()
    return words


def test_this_machine_is_never_reached_through_a_proxy(monkeypatch) -> None:
    for name in ("HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "socks9://nonsense nobody looks at")
    for host in (
        *("localhost", "LOCALHOST", "localhost.", "a.localhost", "127.0.0.1", "127.8.9.1"),
        *("127.1", "0.0.0.0", "0", "::1", "[::1]", "::", "::ffff:127.0.0.1", "2130706433"),
    ):
        assert proxy_for(host) is None
        assert through(host) == ""


@pytest.mark.parametrize("host", ["localhost.example", "128.0.0.1", "::2", "::ffff:10.0.0.1", "h"])
def test_all_other_machines_are(monkeypatch, host: str) -> None:
    assert not is_own(host)
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    assert proxy_for(host) is None  # nothing is sent without TLS
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert str(proxy_for(host)) == "the proxy http://proxy:3128 of HTTPS_PROXY"
    monkeypatch.setenv("NO_PROXY", f"elsewhere,{host}")
    assert proxy_for(host) is None


@pytest.mark.parametrize(
    ("variable", "given", "url", "shown"),
    [
        ("HTTPS_PROXY", "proxy:3128", "http://proxy:3128", "proxy:3128"),
        ("https_proxy", "http://proxy:3128/", "http://proxy:3128/", "http://proxy:3128/"),
        ("ALL_PROXY", " http://proxy ", "http://proxy", "http://proxy"),
        ("all_proxy", "10.0.0.9:8080", "http://10.0.0.9:8080", "10.0.0.9:8080"),
        ("ALL_PROXY", "https://[fd00::1]:8080", "https://[fd00::1]:8080", "https://[fd00::1]:8080"),
        ("HTTPS_PROXY", "http://me:secret@p:1", "http://me:secret@p:1", "http://...@p:1"),
        ("HTTPS_PROXY", "me:secret@p:1", "http://me:secret@p:1", "...@p:1"),
    ],
)
def test_a_proxy_is_named_by_its_variable(monkeypatch, variable, given, url, shown) -> None:
    monkeypatch.setenv(variable, given)
    found = proxy_for("sum.example")
    assert found is not None
    assert found.url == url
    assert "secret" not in str(found)
    assert f"{shown} of {variable}" in str(found).replace("http://" + shown, shown)
    assert through("sum.example") == f" through {found}"


def test_what_is_no_proxy_is_refused_in_one_line(monkeypatch) -> None:
    refused = r"^ALL_PROXY must be .* got .*; NO_PROXY=sum\.ex"
    for given in (
        *("http://", "http://:80", "://p", "http://p:port", "http://p:99999", "http://p:0"),
        *("ftp://p:21", "socks://p:1", "socks4://p:1", "file:///p", "http://a b:1", "p q"),
        *("http://p:1/path", "http://p:1?q", "http://[::1", "//p:1", "http://p\x1b[2J:1"),
        "http://me:se/cret@p:1",
    ):
        monkeypatch.setenv("ALL_PROXY", given)
        with pytest.raises(ValueError, match=refused) as error:
            client("sum.example", TLS)
        assert str(error.value).isprintable()
    monkeypatch.setenv("NO_PROXY", "sum.example")
    assert proxy_for("sum.example") is None


def test_socks_needs_an_extra(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "socksio", None)
    for given in ("socks5://p:1080", "socks5h://me:secret@p:1080"):
        monkeypatch.setenv("ALL_PROXY", given)
        with pytest.raises(ValueError, match=r"^ALL_PROXY=socks5h?://.*\[socks\]") as refused:
            client("sum.example", TLS)
        assert "secret" not in str(refused.value)
    monkeypatch.setitem(sys.modules, "socksio", sys)
    assert str(proxy_for("h")) == "the proxy socks5h://...@p:1080 of ALL_PROXY"


def test_what_a_socks_proxy_that_is_none_answers_is_an_error_of_the_line(monkeypatch) -> None:
    odd = type("ProtocolError", (Exception,), {"__module__": "socksio.exceptions"})

    def sent(client: httpx.Client, request: httpx.Request, **options: object) -> httpx.Response:
        raise odd("Malformed reply") if request.url.path == "/odd" else ZeroDivisionError

    monkeypatch.setattr(httpx.Client, "send", sent)
    made, _ = client("h", TLS)
    with made:
        with pytest.raises(httpx.TransportError, match="Malformed reply of the proxy"):
            made.get("http://h/odd")
        with pytest.raises(ZeroDivisionError):
            made.get("http://h/")
