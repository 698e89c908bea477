"""A command that is stopped: before the first draw nothing counts, after it the line says so."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from train_distributed.commands import releasing as run_command
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.reservation import LedgerReservation
from train_distributed.ledger.state import GIVE_BACK, RESERVE
from train_distributed.one_shot import source
from train_distributed.privacy import mechanism
from train_distributed.released import evaluate
from train_distributed.store.store import Store

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "2"}
DRIVER = """
import importlib, sys, time
from pathlib import Path
from train_distributed.__main__ import main
home, name, when = sys.argv.pop(1).partition(":")[::2] + (sys.argv.pop(1),)
owner = importlib.import_module(home)
*inner, name = name.split(".")
for each in inner:
    owner = getattr(owner, each)
right = getattr(owner, name)
def stopped(*of, **given):
    done = right(*of, **given) if when == "after" else None
    Path("there").touch()
    while not Path("go").exists():
        time.sleep(0.01)
    return right(*of, **given) if done is None else done
setattr(owner, name, stopped)
sys.exit(main())
"""


@pytest.fixture
def evaluation(say, sets) -> list[str]:
    """Command line of an evaluation, whose ledger holds one release."""
    private, public = sets
    given = ("--embeddings", private, "--share", "0.4", "--out", "held")
    assert say("embed", "hold-out", *given)[0] == 0
    given = ("--embeddings", "held", "--public", public, "--epsilon", "5", "--out", "model")
    assert say("run", *given, "--method", "discriminant", "--sums", "1")[0] == 0
    return ["evaluate", "--embeddings", "held", "--model", "model", "--epsilon", "2"]


def stop_at(
    patch: pytest.MonkeyPatch, owner: Any, name: str, stop: signal.Signals, *, after: bool = False
) -> None:
    """Sends this process a signal where it first calls a function, or has called it."""
    right, sent = getattr(owner, name), []

    def call(*of: Any, **given: Any) -> Any:
        done = right(*of, **given) if after else None
        if not sent:
            sent.append(stop)
            os.kill(os.getpid(), stop)
            time.sleep(0.01)
        return done if after else right(*of, **given)

    patch.setattr(owner, name, call)


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(
    ("owner", "name"),
    [(source.Source, "chunks"), (mechanism.DiscreteGaussian, "encode")],
)
def test_before_the_ledger_is_written_nothing_is_counted(
    run, ledger, monkeypatch, tmp_path, owner: Any, name: str, stop: signal.Signals
) -> None:
    stop_at(monkeypatch, owner, name, stop)
    assert run("--out", "made") == (130, "", "interrupted; nothing was written\n")
    assert not ledger.path.exists()
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize("at", ["append", "transaction", "locked_directories"])
def test_a_signal_while_the_ledger_is_written_gives_back(
    run, call, ledger, monkeypatch, at: str, stop: signal.Signals
) -> None:
    """It waits until the line is on the disk, and before any noise the line after it says no."""
    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    if at == "append":
        stop_at(monkeypatch, Store, "append", stop, after=True)
    elif at == "transaction":
        stop_at(monkeypatch, Store, "transaction", stop)
    else:
        monkeypatch.setattr(Ledger, "afford", lambda *_: None)
        stop_at(monkeypatch, sys.modules[Ledger.__module__], at, stop)
    assert run("--out", "made") == (130, "", "interrupted; nothing was written\n")
    assert not ledger.state().records
    assert ledger.total().epsilon(1e-5) == 0
    assert [line.kind for line in ledger.lines()] == [RESERVE, GIVE_BACK]
    monkeypatch.undo()
    shown = call("ledger", "show", "--ledger", str(ledger.path))[1]
    assert shown.startswith("given back: 1, for which no noise was drawn\nhead ")


def test_what_cannot_be_given_back_is_named(run, ledger, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "private.ledger")

    stop_at(monkeypatch, Store, "append", signal.SIGINT, after=True)
    monkeypatch.setattr(Ledger, "give_back", full)
    code, _, error = run("--out", "made")
    (record,) = ledger.state().records
    assert code == 2
    assert f"its epsilon counts: entry {record.id} in {ledger.path}" in error


@pytest.mark.parametrize("stop", STOPS)
@pytest.mark.parametrize(("name", "after"), [("add_noise", False), ("add_noise", True)])
def test_after_it_the_entry_stays_and_is_named(
    run, ledger, monkeypatch, name: str, after: bool, stop: signal.Signals
) -> None:
    stop_at(monkeypatch, mechanism, name, stop, after=after)
    code, printed, error = run("--out", "made")
    (record,) = ledger.state().records
    kept = f"nothing was written; its epsilon counts: entry {record.id} in {ledger.path}"
    assert (code, printed, error) == (130, "", f"interrupted; {kept}\n")


@pytest.mark.parametrize(
    ("owner", "name"),
    [(Ledger, "spend"), (LedgerReservation, "summary"), (run_command, "lines_of")],
)
def test_what_was_written_is_not_said_to_be_nothing(
    run, ledger, monkeypatch, owner: Any, name: str
) -> None:
    stop_at(monkeypatch, owner, name, signal.SIGINT)
    code, _, error = run("--out", "made")
    assert (code, error) == (130, "interrupted; made was written\n")
    assert ledger.state().records[0].spent
    assert (Path("made") / "report.json").exists()


def test_an_error_after_the_noise_says_that_it_counts(run, ledger, monkeypatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("train_distributed.one_shot.model.Release.write", full)
    code, printed, error = run("--out", "made")
    (record,) = ledger.state().records
    counted = f"its epsilon counts: entry {record.id} in {ledger.path}"
    assert (code, printed) == (2, "")
    assert error == f"error: made: No space left on device; {counted}\n"


@pytest.mark.parametrize("where", ["/dev/full", "closed"])
def test_an_output_that_nobody_reads_costs_no_model(sets, tmp_path, ledger, where: str) -> None:
    words = [
        "run",
        "--embeddings",
        sets[0],
        "--public",
        sets[1],
        "--method",
        "discriminant",
        "--sums",
        "1",
    ]
    command = [sys.executable, "-u", "-m", "train_distributed", *words, "--out", "made"]
    reading, writing = os.pipe() if where == "closed" else (None, os.open(where, os.O_WRONLY))
    if reading is not None:
        os.close(reading)
    subprocess.run(command, cwd=tmp_path, stdout=writing, env=ENVIRONMENT, check=False)
    os.close(writing)
    assert (tmp_path / "made" / "model.safetensors").exists()
    assert ledger.state().records[0].spent


@pytest.mark.parametrize("stop", STOPS[:2])
def test_so_of_an_evaluation(say, evaluation, monkeypatch, stop: signal.Signals) -> None:
    before = Ledger(Path("held.ledger")).lines()
    with monkeypatch.context() as patch:
        stop_at(patch, evaluate, "submissions", stop)
        assert say(*evaluation) == (130, "", "interrupted; nothing was written\n")
    assert Ledger(Path("held.ledger")).lines() == before
    with monkeypatch.context() as patch:
        stop_at(patch, Store, "append", stop, after=True)
        assert say(*evaluation) == (130, "", "interrupted; nothing was written\n")
    assert len(Ledger(Path("held.ledger")).state().records) == 1
    with monkeypatch.context() as patch:
        stop_at(patch, mechanism, "add_noise", stop, after=True)
        code, _, error = say(*evaluation)
    assert code == 130
    record = Ledger(Path("held.ledger")).state().records[-1]
    assert record.entry.kind == "evaluation"
    assert f"nothing was written; its epsilon counts: entry {record.id} in " in error
    assert not list(Path("runs").glob("*"))


def process(*typed: str) -> "subprocess.Popen[str]":
    """The driver, once it is where it is to be stopped."""
    command = [sys.executable, "-c", DRIVER, *typed]
    child = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    while not Path("there").exists():
        assert child.poll() is None, child.communicate()[1]
        time.sleep(0.02)
    return child


CASES = [
    ("train_distributed.privacy.mechanism:DiscreteGaussian.encode", "before", 0),
    ("train_distributed.store.store:Store.append", "after", 0),
    ("train_distributed.privacy.mechanism:add_noise", "after", 1),
]
EVALUATED = [("train_distributed.released.evaluate:submissions", "before", 0), CASES[2]]


@pytest.mark.parametrize(("place", "when", "counted"), CASES)
def test_ctrl_c_in_a_process(sets, tmp_path, monkeypatch, ledger, place, when, counted) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "--embeddings",
        sets[0],
        "--public",
        sets[1],
        "--method",
        "discriminant",
        "--sums",
        "1",
    ]
    child = process(place, when, *command, "--out", "made")
    child.send_signal(signal.SIGINT)
    time.sleep(0.1)
    Path("go").touch()
    printed, error = child.communicate(timeout=60)
    assert (child.returncode, printed, error.count("\n")) == (130, "", 1)
    assert ("its epsilon counts: entry" in error) is bool(counted)
    assert len(ledger.state().records) == counted
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("place", "when", "counted"), EVALUATED)
def test_ctrl_c_in_an_evaluation_s_process(say, evaluation, place, when, counted) -> None:
    child = process(place, when, *evaluation)
    child.send_signal(signal.SIGINT)
    time.sleep(0.1)
    Path("go").touch()
    error = child.communicate(timeout=60)[1]
    assert (child.returncode, error.count("\n")) == (130, 1)
    assert ("its epsilon counts: entry" in error) is bool(counted)
    assert len(Ledger(Path("held.ledger")).state().records) == 1 + counted


@pytest.mark.parametrize("place", [CASES[0][0], CASES[2][0]])
def test_killed_outright_nothing_stays_but_what_was_drawn(
    sets, tmp_path, monkeypatch, ledger, place
) -> None:
    monkeypatch.chdir(tmp_path)
    command = [
        "run",
        "--embeddings",
        sets[0],
        "--public",
        sets[1],
        "--method",
        "discriminant",
        "--sums",
        "1",
    ]
    child = process(place, "after", *command, "--out", "made")
    child.kill()
    child.communicate()
    states = [(r.entry.result, r.spent) for r in ledger.state().records]
    assert states == ([("made", False)] if place == CASES[2][0] else [])
    assert [line.kind for line in ledger.lines()] == [RESERVE] * len(states)
