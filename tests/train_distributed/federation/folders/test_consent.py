"""A user takes part in what it has accepted, within limits of its own, and in nothing else."""

import os
import pty
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders.homes import Engine, digest_of, federation_of
from tests.train_distributed.federation.folders.windows import Home
from train_distributed.commands.federation import Start
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation.documents.ledger import Limits
from train_distributed.federation.documents.window_file import WINDOW
from train_distributed.privacy.promise import Privacy

KNOWN = "known of the classes before, from public sources"
WISHED = Privacy(1e6, 0.9, 0.8)  # by an operator that hopes that nobody looks


def _check_nothing_given(home: Path, listening: socket.socket) -> None:
    """Neither a journal nor a run nor a ledger, and nobody called a server."""
    left = {path.name for path in (home / "user0").iterdir()}
    assert left == {"embeddings", "private.json", "hospital-0.party.json"}
    with pytest.raises(BlockingIOError):
        listening.accept()


def _options(command: type, home: Path, **changes: Any) -> Start | Report:
    user = home / "user0"
    fixed: dict[str, Any] = {"folder": user, "invitation": home / "fed" / "invitation"}
    fixed |= {"embeddings": user / "embeddings", "patience": 1.0}
    fixed |= {"window": home / "window" / WINDOW} if command is Report else {}
    return command(**(fixed | changes))


@pytest.fixture(params=[Start, Report], ids=["start", "report"])
def command(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    """Where the operator and all aggregators should be."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


@pytest.fixture
def federated(initiated: Callable[..., Path], listening: socket.socket) -> Callable[..., Path]:
    """A federation, for reports one with a window; whoever calls its servers is seen."""

    def make(command: type, **settings: Any) -> Path:
        port, shares = listening.getsockname()[1], command is Report
        if shares and "privacy" in settings:
            settings["privacy"] = replace(settings["privacy"], honest_fraction=None)
        home = initiated(**{"servers": int(shares), "minimum": 2, "port": port} | settings)
        if shares:
            Home(home, addresses=(f"127.0.0.1:{port}",) * 2)
        return home

    return make


@pytest.mark.parametrize(
    ("settings", "changes", "words"),
    [
        ({"privacy": WISHED, "allow_delta": True}, {}, r"most_delta must be >= 0\.9, got 0\.0001"),
        ({"privacy": replace(WISHED, delta=1e-5)}, {}, r"most_epsilon must be >= 1e\+06, got 10"),
        ({"sessions": 4}, {}, r"most_epsilon must be >= 1\d\.\d+, got 10"),
        ({}, {"limits": Limits(most_epsilon=4.9)}, r"most_epsilon must be >= 5, got 4\.9"),
        ({}, {"limits": Limits(most_delta=9e-6)}, "most_delta must be >= 1e-05, got 9e-06"),
        ({}, {"limits": Limits(least_users=3)}, r"least_users must be <= 2, .* got 3"),
        ({}, {"limits": Limits(most_epsilon_alone=4.9)}, r"most_epsilon_alone must be >= .*4\.9"),
        ({}, {"accept": 16 * "x"}, "must have the digest that you were told, x{16}, has another:"),
        ({}, {"accept": "x"}, "accept must be 16 characters of the digest or more, got 1"),
        ({}, {"accept": ""}, "accept must be given where nobody can be asked, got none: --accept"),
    ],
)
def test_what_a_user_does_not_agree_to_is_refused_in_one_line(
    command, federated, listening, capsys, settings, changes, words
) -> None:
    home = federated(command, **settings)
    fixed = {"accept": digest_of(home)}
    with pytest.raises(ValueError, match=words) as refused:
        _options(command, home, **(fixed | changes)).run()
    assert "\n" not in str(refused.value)
    if "accept" in changes:
        assert digest_of(home)[:16] not in str(refused.value)  # or it would be copied from here
    _check_nothing_given(home, listening)


def test_the_limit_alone_is_of_what_is_left_if_all_others_collude(federated, listening) -> None:
    """More than the promise, where users add the noise: a limit above the promise may refuse."""
    home = federated(Start)
    limits = Limits(most_epsilon_alone=5.1)
    with pytest.raises(ValueError, match=r"most_epsilon_alone must be >= .*5\.1"):
        _options(Start, home, accept=digest_of(home), limits=limits).run()
    _check_nothing_given(home, listening)


def test_all_that_a_user_gives_away_is_shown(federated, knowing, engine, capsys) -> None:
    given = {"privacy": Privacy(2.0, 1e-5, 0.7), "transform": knowing, "options": {"sums": 2}}
    home = federated(Start, sessions=2, **given)
    capsys.readouterr()
    numbers = federation_of(home).second_dimension
    assert _options(Start, home, accept=digest_of(home)[:16]).run() == 0
    said = capsys.readouterr().out
    for words in (
        f"user 0 (hospital-0) of federation {digest_of(home)}",
        "release by method discriminant; 3 classes: a, b, c",
        f"one vector of 7 numbers, then one of {numbers}, your noise inside: ",
        "in each of 2 session(s)",
        "epsilon 2 at delta 1e-05 of one session, 2.96 of all agreed ones: replace one record",
        "at least 3 of 3 users must be honest",
        "(epsilon 0): epsilon 2.96 at delta 1e-05; your limits: 10 at 0.0001",
        "sums of 2 users and more; SecAgg+ among the users, one server",
        "servers: operator\n",
        "sent to the operator at 127.0.0.1:",
        "secret from the server, colluding with at most 0.1 of the users",
        "transform.safetensors: SHA-256 ",
        f"{KNOWN}: names of 200 public classes",
    ):
        assert words in said
    (alone,) = re.findall(r"if all others collude: epsilon ([\d.]+)", said)
    assert float(alone) > 2.96


def test_a_user_of_shares_is_told_whom_its_promise_needs(federated, capsys, monkeypatch) -> None:
    monkeypatch.setattr("train_distributed.federation.aggregator_client.SECONDS", 1.0)
    home = federated(Report)
    capsys.readouterr()
    with pytest.raises(OSError, match="must answer"):  # nobody answers there
        _options(Report, home, accept=digest_of(home), patience=0.0).run()
    said = capsys.readouterr().out
    for words in (
        "numbers, without noise: ",
        "one of the two servers must be honest; users need not be",
        "if the two servers collude: they see all that was sent",
        "additive shares at two servers, with proofs of length",
        "secret from either of the two servers, colluding with all other users",
        "servers: operator, computation server 1 (adder-1)\n",
        "sent to aggregator 0 at 127.0.0.1:",
    ):
        assert words in said
    assert KNOWN not in said
    assert "who publishes one of the" not in said


def test_a_user_is_told_of_a_delta_that_protects_no_row(federated, capsys, monkeypatch) -> None:
    monkeypatch.setattr("train_distributed.federation.aggregator_client.SECONDS", 1.0)
    home = federated(Report, privacy=Privacy(2.0, 0.5), allow_delta=True)
    limits = Limits(most_delta=0.5)
    capsys.readouterr()
    with pytest.raises(OSError, match="must answer"):
        _options(Report, home, accept=digest_of(home), patience=0.0, limits=limits).run()
    assert re.search(r"  delta is 1/\d+ or more: who publishes one of the", capsys.readouterr().out)


def test_what_was_accepted_in_this_folder_is_not_asked_again(initiated, engine, capsys) -> None:
    home = initiated()
    asked = _options(Start, home)
    assert replace(asked, accept=digest_of(home)).run() == 0
    assert asked.run() == 0
    with pytest.raises(ValueError, match="most_epsilon must be"):
        replace(asked, limits=Limits(most_epsilon=1.0)).run()
    shutil.rmtree(home / "user0" / "state")
    with pytest.raises(ValueError, match="accept must be given"):
        asked.run()
    assert len(engine.parties) == 2


@contextmanager
def typed(line: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A terminal at which somebody types this line."""
    leader, follower = pty.openpty()
    with (
        os.fdopen(leader, "wb", buffering=0) as keyboard,
        os.fdopen(follower) as stdin,
        monkeypatch.context() as patched,
    ):
        keyboard.write(line.encode() + b"\n")
        patched.setattr(sys, "stdin", stdin)
        patched.setattr(sys.stdout, "isatty", lambda: True)
        yield


def test_a_user_at_a_terminal_is_asked(command, federated, listening, monkeypatch, capsys) -> None:
    home = federated(command)
    refusal = f"answer must be yes to take part in federation {digest_of(home)}, got 'no'"
    capsys.readouterr()
    with typed("no", monkeypatch), pytest.raises(ValueError, match=refusal):
        _options(command, home).run()
    said = capsys.readouterr().out
    assert re.search(r"do you take part by .* at 127\.0\.0\.1:\d+\? yes or no: $", said)
    assert digest_of(home) in said
    assert "epsilon 5 at delta 1e-05" in said
    _check_nothing_given(home, listening)
    if command is Start:
        engine = Engine(monkeypatch)
        with typed("yes", monkeypatch):
            assert _options(command, home).run() == 0
        assert len(engine.parties) == 1
        assert (home / "user0" / "state").exists()
