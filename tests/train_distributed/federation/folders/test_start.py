"""`start`, `status` and the ledger, with the network cut off: checks come first, logs stay."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders.homes import digest_of, federation_of, init_of
from train_distributed.commands.federation import Start, Status, hosting
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.ledger import BudgetedJournal, Limits
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import read_ledger, remember
from train_distributed.federation.flower_app.party import NodeLine
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.state import Total
from train_distributed.secure_sum.journal import DurableJournal


def run_of(folder: Path) -> Path:
    """What the last run has left."""
    return max((folder / "runs").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def party(home: Path, name: str, operator: str = "fed") -> Start:
    invitation, accept = home / operator / "invitation", digest_of(home, operator)
    return Start(home / name, invitation, home / name / "embeddings", accept=accept)


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
    session = federation_of(home).session(bytes.fromhex("ab" * 32))
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
    assert party(home, "user2").run() == 0
    assert "user 2 (hospital-2)" in capsys.readouterr().err
    attendance = engine.parties[-1]
    assert (attendance.address, attendance.party) == ("127.0.0.1:9092", 2)
    assert attendance.keys == read_private(user)
    assert "connected" in (run_of(user) / "log.txt").read_text()
    status = json.loads((run_of(user) / "status.json").read_text())
    assert status["party"] == "user 2 (hospital-2)"
    endpoint: Any = attendance.endpoint
    assert isinstance(endpoint._journal, BudgetedJournal)
    endpoint._journal.claim(federation_of(home).digest, "session0", b"n" * 32)
    (record,) = Ledger.open(user / "embeddings.ledger").state().records
    entry = record.entry
    assert (entry.part, entry.users, entry.noise) == ("train", "", "discrete")
    assert Total.of([entry], "record").epsilon(1e-5) == pytest.approx(5.0, rel=1e-6)


def test_a_party_may_be_asked_by_a_flower_node(engine, initiated, capsys) -> None:
    home = initiated()
    address = f"unix:{home}/node.sock"
    assert replace(party(home, "user2"), operator=address).run() == 0
    assert f"the Flower node at {address}" in capsys.readouterr().out
    assert engine.parties[0].address == address
    assert isinstance(engine.lines[0], NodeLine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": None}, r"embeddings must be given for user 0 \(hospital-0\)"),
        ({"out": Path("x")}, "out must be left out with an invitation"),
        ({"limits": Limits(most_epsilon=-1.0)}, "most_epsilon must be > 0"),
        ({"patience": 0.0}, "patience must be in"),
        ({"invitation": None, "embeddings": None}, "accept must be left out without an invitation"),
    ],
)
def test_a_party_is_told_what_does_not_fit(
    change: dict[str, Any], message: str, engine, initiated
) -> None:
    home = initiated()
    start = party(home, "user0")
    if "embeddings" in change:
        (home / "user0" / "embeddings").rename(home / "elsewhere")
    with pytest.raises(ValueError, match=message):
        replace(start, **change).run()
    assert not engine.parties


def test_epsilon_adds_up_over_federations(engine, initiated, capsys) -> None:
    home = initiated()
    user, first = home / "user0", federation_of(home)
    party(home, "user0").run()
    journal = DurableJournal(remember(user, first, 0))
    journal.claim(first.digest, "session0", b"n" * 32)
    promise: dict[str, Any] = {"epsilon": 2.0, "honest_fraction": 0.8}
    files = sorted(home.glob("user*/*.party.json"))
    init_of(home, files, folder=home / "two", **promise).run()
    start = party(home, "user0", "two")
    words = r"most_epsilon must be >= 7, got 6\.9: .* 2e-05, of which 5 was given away by 1 other"
    with pytest.raises(ValueError, match=words):
        replace(start, limits=Limits(most_epsilon=6.9)).run()
    assert replace(start, limits=Limits(most_epsilon=7.0)).run() == 0
    spent = {entry.digest: (entry.used, entry.spent) for entry in read_ledger(user)}
    assert spent == {first.digest.hex(): (1, 5.0), digest_of(home, "two"): (0, 0.0)}
    capsys.readouterr()
    Status(user).run()
    shown = capsys.readouterr().out
    assert "sessions: 1 used, 0 left; epsilon 5 of 5" in shown
    assert "sessions: 0 used, 1 left; epsilon 0 of 2" in shown
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
