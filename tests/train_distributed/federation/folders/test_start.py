"""`start`, `status` and the ledger, with the network cut off: checks come first, logs stay."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation.folders.engine import Engine, digest_of
from train_distributed.commands.federation import Init, Join, Start, Status, hosting
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.ledger import BudgetedJournal, Limits
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.sessions import read_ledger, remember
from train_distributed.federation.flower_app.party import NodeLine
from train_distributed.secure_sum.journal import DurableJournal


def _run(folder: Path) -> Path:
    return max((folder / "runs").iterdir())


def test_the_operator_writes_model_report_and_log(
    engine: Engine, initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = initiated(minimum=2)
    monkeypatch.chdir(home)
    assert Start(Path("fed")).run() == 0
    (operation,) = engine.operations
    assert operation.port == 9092
    assert operation.tls is not None
    assert operation.state.is_absolute()
    run = _run(home / "fed")
    report = json.loads((run / "model" / "report.json").read_text())
    federation = Federation.load(home / "fed" / "federation.json")
    assert report["session"] == federation.session(bytes.fromhex("ab" * 32)).digest.hex()
    assert report["surviving_users"] == ["user 0 (hospital-0)", "user 2 (hospital-2)"]
    assert (report["bytes_per_user"], report["survivors"]) == (700, 2)
    log = (run / "log.txt").read_text()
    assert "stage: 3 of 3" in log
    assert "refused: user 1: refused: \\x1b" in log
    assert "user 1 (hospital-1) was lost at: masked input" in log


def test_a_failed_session_leaves_its_log_and_no_model(
    engine: Engine, initiated: Callable[..., Path]
) -> None:
    engine.failure = ValueError("TooFewUsers: users present must be >= 3, got 0")
    fed = initiated() / "fed"
    with pytest.raises(ValueError, match="TooFewUsers"):
        Start(fed).run()
    run = _run(fed)
    assert "ended by ValueError: TooFewUsers" in (run / "log.txt").read_text()
    assert not (run / "model").exists()


def _break_out(home: Path, start: Start) -> Start:
    (home / "file").touch()
    return replace(start, out=home / "file" / "model")


def _break_keys(home: Path, start: Start) -> Start:
    (home / "user0" / "private.json").replace(home / "fed" / "private.json")
    return start


def _break_certificate(home: Path, start: Start) -> Start:
    pem = home / "fed" / "tls" / "server.pem"
    pem.with_name("server.key").unlink()
    pem.unlink()
    write_certificate(pem.parent, ["127.0.0.1"])
    return start


def _break_port(home: Path, start: Start) -> Start:
    return replace(start, port=70_000)


@pytest.mark.parametrize("spoil", [_break_out, _break_keys, _break_certificate, _break_port])
def test_nobody_is_asked_before_everything_is_good(
    spoil: Callable[[Path, Start], Start], engine: Engine, initiated: Callable[..., Path]
) -> None:
    home = initiated()
    with pytest.raises((ValueError, OSError)):
        spoil(home, Start(home / "fed")).run()
    assert not engine.operations


def test_the_disk_must_hold_the_model(
    engine: Engine, initiated: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "SPARE", 1 << 60)
    with pytest.raises(OSError):  # noqa: PT011
        Start(initiated() / "fed").run()
    assert not engine.operations


def _party(home: Path, name: str) -> Start:
    rows = None if name.startswith("server") else home / name / "embeddings"
    invitation = home / "fed" / "invitation"
    return Start(home / name, invitation=invitation, embeddings=rows, accept=digest_of(home))


def test_a_party_finds_its_number_and_keeps_its_log(
    engine: Engine, initiated: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home = initiated(users=3)
    assert _party(home, "user2").run() == 0
    assert "user 2 (hospital-2)" in capsys.readouterr().err
    (user,) = engine.parties
    told: Any = user.endpoint
    assert isinstance(told._journal, BudgetedJournal)
    assert (user.address, user.party) == ("127.0.0.1:9092", 2)
    assert user.keys == read_private(home / "user2")
    assert "connected" in (_run(home / "user2") / "log.txt").read_text()
    status = json.loads((_run(home / "user2") / "status.json").read_text())
    assert status["party"] == "user 2 (hospital-2)"


def test_a_party_may_be_asked_by_a_flower_node(
    engine: Engine, initiated: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home = initiated(users=3)
    address = f"unix:{home}/node.sock"
    assert replace(_party(home, "user2"), operator=address).run() == 0
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
    ],
)
def test_a_party_is_told_what_does_not_fit(
    change: dict[str, object], message: str, engine: Engine, initiated: Callable[..., Path]
) -> None:
    home = initiated()
    start = _party(home, "user0")
    if "embeddings" in change:
        (home / "user0" / "embeddings").rename(home / "elsewhere")
    with pytest.raises(ValueError, match=message):
        replace(start, **change).run()  # pyright: ignore[reportArgumentType]
    assert not engine.parties


def test_the_operator_s_options_are_its_own(initiated: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="accept must be left out without an invitation"):
        Start(initiated() / "fed", accept="00").run()


def test_epsilon_adds_up_over_federations(
    engine: Engine, initiated: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    home = initiated()
    user, first = home / "user0", Federation.load(home / "fed" / "federation.json")
    _party(home, "user0").run()
    journal = DurableJournal(remember(user, first, 0))
    journal.claim(first.digest, "session0", b"n" * 32)
    Join(user, "hospital-0", rows=12).run()
    files = tuple(sorted(home.glob("user*/*.party.json")))
    promise: dict[str, Any] = {"epsilon": 2.0, "honest_fraction": 0.8}
    transform = home / "public.safetensors"
    Init(home / "two", files, transform, ("localhost",), num_classes=3, **promise).run()
    start = replace(
        _party(home, "user0"), invitation=home / "two" / "invitation", accept=digest_of(home, "two")
    )
    words = r"most_epsilon must be >= 7, got 6\.9: .* 2e-05, of which 5 was given away by 1 other"
    with pytest.raises(ValueError, match=words):
        replace(start, limits=Limits(most_epsilon=6.9)).run()
    assert replace(start, limits=Limits(most_epsilon=7.0)).run() == 0
    spent = {entry.digest: (entry.used, entry.spent) for entry in read_ledger(user)}
    second = Federation.load(home / "two" / "federation.json")
    assert spent == {first.digest.hex(): (1, 5.0), second.digest.hex(): (0, 0.0)}
    capsys.readouterr()
    Status(user).run()
    shown = capsys.readouterr().out
    assert "sessions: 1 used, 0 left; epsilon 5 of 5" in shown
    assert "sessions: 0 used, 1 left; epsilon 0 of 2" in shown
    assert "epsilon of all federations of this folder: 5" in shown


def test_status_escapes_what_others_wrote(
    engine: Engine, initiated: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    fed = initiated(minimum=2) / "fed"
    Status(fed).run()
    assert "never started" in capsys.readouterr().out
    Start(fed).run()
    (_run(fed) / "status.json").write_text(json.dumps({"refused": ["\x1b[2Jgone"], "n": {"a": 1}}))
    with (_run(fed) / "log.txt").open("a") as log:
        log.write("\x1b[31mred\n")
    capsys.readouterr()
    Status(fed).run()
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "refused: \\x1b[2Jgone" in shown
    assert "certificates valid until" in shown
