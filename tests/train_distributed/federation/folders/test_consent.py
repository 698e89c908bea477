"""`start`, `report` and `status`: checks come first, and a user takes part in what it accepted."""

import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders import homes
from train_distributed.commands.federation import Start, Status, hosting
from train_distributed.commands.federation.reporting import Report
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.ledger import BudgetedJournal, Limits
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import read_ledger, remember
from train_distributed.federation.documents.window_file import WINDOW
from train_distributed.federation.flower_app.party import NodeLine
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.state import Total
from train_distributed.privacy.promise import Privacy
from train_distributed.secure_sum.journal import DurableJournal

KNOWN = "known of the classes before, from public sources"
NO_ROW = "who publishes one of the"
WISHED = Privacy(1e6, 0.9, 0.8)  # by an operator that hopes that nobody looks


def _check_nothing_given(home: Path, listening: socket.socket) -> None:
    """Neither a journal nor a run nor a ledger, and nobody called a server."""
    left = {path.name for path in (home / "user0").iterdir()}
    assert left == {"embeddings", "private.json", "hospital-0.party.json"}
    with pytest.raises(BlockingIOError):
        listening.accept()


def command_of(
    command: type, home: Path, user: str = "user0", of: str = "fed", **changes: Any
) -> Start | Report:
    """Of a user that accepts its operator's federation."""
    folder, accept = home / user, homes.digest_of(home, of)
    fixed: dict[str, Any] = {"invitation": home / of / "invitation", "accept": accept}
    fixed |= {"embeddings": folder / "embeddings", "patience": 1.0}
    fixed |= {"window": home / "window" / WINDOW} if command is Report else {}
    return command(folder, **(fixed | changes))


@pytest.fixture(params=[Start, Report], ids=["start", "report"])
def command(request: pytest.FixtureRequest) -> type:
    return request.param


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.0)
        yield server


@pytest.fixture
def federated(initiated, listening) -> Callable[..., Path]:
    """A federation, for reports one with a window; whoever calls its servers is seen."""

    def make(command: type, **settings: Any) -> Path:
        port, shares = listening.getsockname()[1], command is Report
        if shares and "privacy" in settings:
            settings["privacy"] = replace(settings["privacy"], honest_fraction=None)
        home = initiated(**{"servers": int(shares), "minimum": 2, "port": port} | settings)
        if shares:
            homes.Home(home, addresses=(f"127.0.0.1:{port}",) * 2)
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
def test_what_a_user_does_not_agree_to_is_refused(
    command, federated, listening, settings, changes, words
) -> None:
    home = federated(command, **settings)
    with pytest.raises(ValueError, match=words) as refused:
        command_of(command, home, **changes).run()
    assert "\n" not in str(refused.value)
    if "accept" in changes:  # or it would be copied from here
        assert homes.digest_of(home)[:16] not in str(refused.value)
    _check_nothing_given(home, listening)


def test_all_that_a_user_gives_away_is_shown(
    federated, knowing, engine, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    given = {"privacy": Privacy(2.0, 1e-5, 0.7), "transform": knowing, "options": {"sums": 2}}
    home = federated(Start, sessions=2, **given)
    capsys.readouterr()
    numbers, digest = homes.federation_of(home).second_dimension, homes.digest_of(home)
    start = command_of(Start, home, accept=digest[:16], operator="h:9")
    with pytest.raises(ValueError, match=r"most_epsilon_alone must be >= .*2\.97"):
        replace(start, limits=Limits(most_epsilon_alone=2.97)).run()  # above the promise
    assert engine.parties == []
    assert start.run() == 0
    said = capsys.readouterr().out
    for words in (
        f"user 0 (hospital-0) of federation {digest}",
        "release by method discriminant; 3 classes: a, b, c",
        f"one vector of 7 numbers, then one of {numbers}, your noise inside: ",
        "epsilon 2 at delta 1e-05 of one session, 2.96 of all agreed ones: replace one record",
        "at least 3 of 3 users must be honest",
        "(epsilon 0): epsilon 2.96 at delta 1e-05; your limits: 10 at 0.0001",
        "sums of 2 users and more; SecAgg+ among the users, one server",
        "sent to the operator at h:9 through the proxy http://p:1 of HTTPS_PROXY\n",
        "secret from the server, colluding with at most 0.1 of the users",
        "transform.safetensors: SHA-256 ",
        f"{KNOWN}: names of 200 public classes",
    ):
        assert words in said
    assert NO_ROW not in said
    (alone,) = re.findall(r"if all others collude: epsilon ([\d.]+)", said)
    assert float(alone) > 2.96


def test_a_user_of_shares_is_told_whom_its_promise_needs(federated, capsys, monkeypatch) -> None:
    monkeypatch.setattr("train_distributed.federation.aggregator_client.SECONDS", 1.0)
    home = federated(Report, privacy=Privacy(2.0, 0.5), allow_delta=True)
    capsys.readouterr()
    with pytest.raises(OSError, match="must answer"):  # nobody answers there
        command_of(Report, home, patience=0.0, limits=Limits(most_delta=0.5)).run()
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
    assert re.search(rf"  delta is 1/\d+ or more: {NO_ROW}", said)
    assert KNOWN not in said


def test_what_was_accepted_in_this_folder_is_not_asked_again(initiated, engine) -> None:
    home = initiated()
    asked = command_of(Start, home, accept="")
    assert replace(asked, accept=homes.digest_of(home)).run() == 0
    assert asked.run() == 0
    with pytest.raises(ValueError, match="most_epsilon must be"):
        replace(asked, limits=Limits(most_epsilon=1.0)).run()
    shutil.rmtree(home / "user0" / "state")
    with pytest.raises(ValueError, match="accept must be given"):
        asked.run()
    assert len(engine.parties) == 2


def test_a_user_at_a_terminal_is_asked(command, federated, listening, monkeypatch, capsys) -> None:
    home = federated(command)
    asked = command_of(command, home, accept="")
    refusal = f"answer must be yes to take part in federation {homes.digest_of(home)}, got 'no'"
    capsys.readouterr()
    homes.type_line(monkeypatch, "no")
    with pytest.raises(ValueError, match=refusal):
        asked.run()
    said = capsys.readouterr().out
    assert re.search(r"do you take part by .* at 127\.0\.0\.1:\d+\? yes or no: $", said)
    assert homes.digest_of(home) in said
    assert "epsilon 5 at delta 1e-05" in said
    _check_nothing_given(home, listening)
    if command is Start:
        engine = homes.Engine(monkeypatch)
        homes.type_line(monkeypatch, "yes")
        assert asked.run() == 0
        assert len(engine.parties) == 1
        assert (home / "user0" / "state").exists()


def run_of(folder: Path) -> Path:
    return max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_the_operator_writes_model_report_and_log(engine, initiated, monkeypatch) -> None:
    home = initiated(minimum=2)
    monkeypatch.chdir(home)
    assert Start(Path("fed")).run() == 0
    (operation,) = engine.operations
    assert operation.port == 9092
    assert operation.tls is not None
    assert operation.state.is_absolute()
    run = run_of(home / "fed")
    report = json.loads((run / "model" / "report.json").read_text())
    session = homes.federation_of(home).session(bytes.fromhex("ab" * 32))
    assert report["session"] == session.digest.hex()
    assert report["surviving_users"] == ["user 0 (hospital-0)", "user 2 (hospital-2)"]
    assert (report["bytes_per_user"], report["survivors"]) == (700, 2)
    log = (run / "log.txt").read_text()
    assert "stage: 3 of 3" in log
    assert "refused: user 1: refused: \\x1b" in log
    assert "user 1 (hospital-1) was lost at: masked input" in log


def test_the_operator_s_ledger_counts_sums_that_became_models(engine, initiated) -> None:
    """A session that failed leaves its log and no model."""
    fed = initiated(minimum=2) / "fed"
    beside = Ledger.open(fed / "operator.ledger")
    engine.failure = ValueError("TooFewUsers: users present must be >= 3, got 0")
    with pytest.raises(ValueError, match="TooFewUsers"):
        Start(fed).run()
    assert "ended by ValueError: TooFewUsers" in (run_of(fed) / "log.txt").read_text()
    assert not (run_of(fed) / "model").exists()
    assert [r.spent for r in beside.state().records] == [False]
    engine.failure = None
    for sums in (1, 2):
        assert Start(fed).run() == 0
        records = beside.state().records
        assert [r.spent for r in records] == [True] * sums
        report = json.loads((run_of(fed) / "model" / "report.json").read_text())
        assert report["ledger"]["entry"] == records[-1].id
    beside.limit(Limit(epsilon=1.0, delta=1e-5))
    asked = len(engine.operations)
    with pytest.raises(ValueError, match=r"limit of ledger operator\.ledger must be >="):
        Start(fed).run()
    assert len(engine.operations) == asked
    assert Start(fed, ledger=Path("none")).run() == 0


def test_nobody_is_asked_before_everything_is_good(engine, initiated, monkeypatch) -> None:
    fed = initiated() / "fed"
    start, tls, keys = Start(fed), fed / "tls", fed / "private.json"
    with pytest.raises(OSError):  # noqa: PT011
        replace(start, out=keys / "model").run()
    with monkeypatch.context() as patched:
        patched.setattr(hosting, "SPARE", 1 << 60)  # the disk must hold the model
        with pytest.raises(OSError):  # noqa: PT011
            start.run()
    for name in ("server.pem", "server.key"):
        (tls / name).rename(fed / name)
    write_certificate(tls, ["127.0.0.1"])
    with pytest.raises(ValueError, match="must be agreed on in"):
        start.run()
    for name in ("server.pem", "server.key"):
        (fed / name).replace(tls / name)
    (fed.parent / "user0" / "private.json").replace(keys)
    with pytest.raises(ValueError, match=r"keys in .*fed must be the operator's in"):
        start.run()
    assert not engine.operations


def test_a_party_finds_its_number_and_keeps_its_log(engine, initiated, capsys) -> None:
    home = initiated()
    user = home / "user2"
    start, address = command_of(Start, home, "user2"), f"unix:{home}/node.sock"
    assert replace(start, operator=address).run() == 0  # a Flower node asks
    assert f"the Flower node at {address}" in capsys.readouterr().out
    assert isinstance(engine.lines[0], NodeLine)
    assert engine.parties[0].address == address
    assert start.run() == 0
    assert "user 2 (hospital-2)" in capsys.readouterr().err
    attendance = engine.parties[-1]
    assert (attendance.address, attendance.party) == ("127.0.0.1:9092", 2)
    assert attendance.keys == read_private(user)
    assert "connected" in (run_of(user) / "log.txt").read_text()
    status = json.loads((run_of(user) / "status.json").read_text())
    assert status["party"] == "user 2 (hospital-2)"
    endpoint: Any = attendance.endpoint
    assert isinstance(endpoint._journal, BudgetedJournal)
    endpoint._journal.claim(homes.federation_of(home).digest, "session0", b"n" * 32)
    (record,) = Ledger.open(user / "embeddings.ledger").state().records
    entry = record.entry
    assert (entry.part, entry.users, entry.noise) == ("train", "", "discrete")
    assert Total.of([entry], "record").epsilon(1e-5) == pytest.approx(5.0, rel=1e-6)


def test_epsilon_adds_up_over_federations(engine, initiated, capsys) -> None:
    home = initiated()
    user, first = home / "user0", homes.federation_of(home)
    command_of(Start, home).run()
    journal = DurableJournal(remember(user, first, 0))
    journal.claim(first.digest, "session0", b"n" * 32)
    promise: dict[str, Any] = {"epsilon": 2.0, "honest_fraction": 0.8}
    files = sorted(home.glob("user*/*.party.json"))
    homes.init_of(home, files, folder=home / "two", **promise).run()
    start = command_of(Start, home, of="two")
    words = r"most_epsilon must be >= 7, got 6\.9: .* 2e-05, of which 5 was given away by 1 other"
    with pytest.raises(ValueError, match=words):
        replace(start, limits=Limits(most_epsilon=6.9)).run()
    assert replace(start, limits=Limits(most_epsilon=7.0)).run() == 0
    spent = {entry.digest: (entry.used, entry.spent) for entry in read_ledger(user)}
    assert spent == {first.digest.hex(): (1, 5.0), homes.digest_of(home, "two"): (0, 0.0)}
    capsys.readouterr()
    Status(user).run()
    shown = capsys.readouterr().out
    assert "sessions: 1 used, 0 left; epsilon 5 of 5" in shown
    assert "epsilon of all federations of this folder: 5" in shown


def test_status_escapes_what_others_wrote(engine, initiated, capsys) -> None:
    fed = initiated(minimum=2) / "fed"
    Status(fed).run()
    assert "never started" in capsys.readouterr().out
    Start(fed).run()
    status = {"refused": ["\x1b[2Jgone"], "n": {"a": 1}}
    (run_of(fed) / "status.json").write_text(json.dumps(status))
    with (run_of(fed) / "log.txt").open("a") as log:
        log.write("\x1b[31mred\n")
    capsys.readouterr()
    Status(fed).run()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "refused: \\x1b[2Jgone" in shown
    assert "certificates valid until" in shown
