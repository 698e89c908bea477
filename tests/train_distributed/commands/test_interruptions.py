"""A command that is stopped: before the first draw nothing counts, after it the line says so."""

import errno
import importlib
import json
import multiprocessing
import os
import signal
import sys
import time
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from train_distributed.commands import releasing
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.reservation import LedgerReservation
from train_distributed.ledger.state import GIVE_BACK, RESERVE
from train_distributed.one_shot import figure, release, source
from train_distributed.privacy import mechanism
from train_distributed.released import evaluate
from train_distributed.store.store import Store

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
NOTHING = (130, "", "interrupted; nothing was written\n")
RUN = "run --embeddings private --public public --method discriminant --sums 1"
LEDGER = sys.modules[Ledger.__module__]
# Where a run is stopped, before a function is called or after it, and what is left then.
PLACES = [
    (source.Source, "chunks", False, "nothing"),
    (mechanism.DiscreteGaussian, "encode", False, "nothing"),
    (Store, "append", True, "given back"),
    (Store, "transaction", False, "given back"),
    (LEDGER, "locked_directories", False, "given back"),
    (mechanism, "add_noise", False, "counts"),
    (mechanism, "add_noise", True, "counts"),
    (figure, "draw_release", False, "counts"),  # two files of three are there
    (Ledger, "spend", False, "written"),
    (LedgerReservation, "summary", False, "written"),
    (releasing, "lines_of", False, "written"),
]


def stop_at(patch: Any, owner: Any, name: str, stop: signal.Signals, after: bool) -> None:
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
@pytest.mark.parametrize(("owner", "name", "after", "left"), PLACES)
def test_a_signal_at_any_point_leaves_what_is_said(
    run, call, ledger, monkeypatch, tmp_path, owner, name, after, left, stop
) -> None:
    """While the ledger is written it waits until the line is on the disk.

    Before any noise the line after it says no; after it the entry counts and is named.
    """
    before = {*tmp_path.rglob("*")}
    if left == "given back":
        monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    if name == "locked_directories":
        monkeypatch.setattr(Ledger, "afford", lambda *_: None)
    stop_at(monkeypatch, owner, name, stop, after)
    said = run("--out made")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    records = ledger.state().records if left != "nothing" else []
    if left == "nothing":
        assert said == NOTHING
        assert not ledger.path.exists()
    elif left == "given back":
        assert said == NOTHING
        assert (list(records), ledger.total().epsilon(1e-5)) == ([], 0)
        assert [line.kind for line in ledger.lines()] == [RESERVE, GIVE_BACK]
        shown = call.done("ledger", "show", "--ledger", str(ledger.path))
        assert shown.startswith("given back: 1, for which no noise was drawn\nhead ")
    elif left == "counts":
        kept = f"its epsilon counts: entry {records[0].id} in {ledger.path}"
        assert said == (130, "", f"interrupted; nothing was written; {kept}\n")
        assert ledger.total().epsilon(1e-5) == pytest.approx(1.0)
    else:
        assert (said[0], said[2]) == (130, "interrupted; made was written\n")
        assert records[0].spent
        assert Path("made/report.json").exists()
        return
    ledgers = {ledger.path, ledger.path.with_name("private.ledger.centre")}
    assert {*tmp_path.rglob("*")} <= before | ledgers


def full(*_: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_error_after_the_entry_says_that_it_counts(run, ledger, monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("train_distributed.one_shot.model.Release.write", full)
        code, printed, error = run("--out made")
    (record,) = ledger.state().records
    counted = f"its epsilon counts: entry {record.id} in {ledger.path}"
    assert (code, printed) == (2, "")
    assert error == f"error: made: No space left on device; {counted}\n"
    stop_at(monkeypatch, Store, "append", signal.SIGINT, after=True)
    monkeypatch.setattr(Ledger, "give_back", full)  # what cannot be given back is named
    code, _, error = run("--out made")
    record = ledger.state().records[-1]
    assert code == 2
    assert f"its epsilon counts: entry {record.id} in {ledger.path}" in error


@pytest.mark.parametrize("stop", STOPS[:2])
def test_so_of_an_evaluation(say, sets, no_pictures, monkeypatch, stop: signal.Signals) -> None:
    say.done("embed hold-out --embeddings private --share 0.4 --out held")
    say.done(f"{RUN} --embeddings held --epsilon 5 --out model")
    held, line = Ledger(Path("held.ledger")), "evaluate --embeddings held --model model --epsilon 2"
    before = held.lines()
    with monkeypatch.context() as patch:
        stop_at(patch, evaluate, "submissions", stop, after=False)
        assert say(line) == NOTHING
    assert held.lines() == before
    with monkeypatch.context() as patch:
        stop_at(patch, Store, "append", stop, after=True)
        assert say(line) == NOTHING
    assert len(held.state().records) == 1
    with monkeypatch.context() as patch:
        stop_at(patch, mechanism, "add_noise", stop, after=True)
        code, _, error = say(line)
    record = held.state().records[-1]
    assert (code, record.entry.kind) == (130, "evaluation")
    assert f"nothing was written; its epsilon counts: entry {record.id} in " in error
    assert not list(Path("runs").glob("*"))


def test_a_run_into_a_directory_that_another_writes_draws_no_noise(run, ledger, monkeypatch):
    """The second begins while the first one's noise is drawn."""
    real, met = release.release_of, []

    def meet(request):
        if not met:
            met.append(None)
            run.refused("--out made", "must be written by one command at a time")
            assert not ledger.path.exists()
        return real(request)

    monkeypatch.setattr(release, "release_of", meet)
    run.done("--out made")
    assert met
    (record,) = ledger.state().records
    assert json.loads(Path("made/report.json").read_text())["ledger"]["entry"] == record.id


FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])  # one process imports everything, once


CLOSED = Path("closed")  # a pipe that nobody reads


def alone(folder: Path, line: str, said: Path, place: str = "", when: str = "") -> None:
    """A command in a process of its own, which waits before or after a function until told to go.

    `place` is MODULE:NAME of the function.
    """
    from train_distributed.__main__ import main

    os.chdir(folder)
    reading, writing = os.pipe()
    os.close(reading)
    if said != CLOSED:
        writing = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    sys.stdout = os.fdopen(writing, "w", buffering=1)
    os.dup2(os.open("error", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), sys.stderr.fileno())
    figure.draw_release = lambda *_, **__: None
    if place:
        module, _, path = place.partition(":")
        *inner, name = path.split(".")
        owner = reduce(getattr, inner, importlib.import_module(module))
        right = getattr(owner, name)

        def stopped(*of: Any, **given: Any) -> Any:
            done = right(*of, **given) if when == "after" else None
            Path("there").touch()
            while not Path("go").exists():
                time.sleep(0.01)
            return right(*of, **given) if done is None else done

        setattr(owner, name, stopped)
    sys.argv[:] = ["blind-averaging", *line.split()]
    sys.exit(main())


ENCODE = "train_distributed.privacy.mechanism:DiscreteGaussian.encode"
APPEND = "train_distributed.store.store:Store.append"
DRAW = "train_distributed.privacy.mechanism:add_noise"


@pytest.mark.parametrize(
    ("place", "when", "stop", "counted"),
    [
        (ENCODE, "before", signal.SIGINT, 0),
        (APPEND, "after", signal.SIGINT, 0),
        (DRAW, "after", signal.SIGINT, 1),
        (ENCODE, "after", signal.SIGKILL, 0),  # nothing stays but what was drawn
        (DRAW, "after", signal.SIGKILL, 1),
    ],
)
def test_a_process_that_is_stopped(sets, tmp_path, ledger, place, when, stop, counted) -> None:
    given = (tmp_path, f"{RUN} --out made", tmp_path / "said", place, when)
    child = FORKS.Process(target=alone, args=given)
    child.start()
    while not (tmp_path / "there").exists():
        assert child.is_alive(), (tmp_path / "error").read_text()
        time.sleep(0.01)
    os.kill(child.pid or 0, stop)
    time.sleep(0.1)
    (tmp_path / "go").touch()
    child.join(60)
    printed, error = ((tmp_path / name).read_text() for name in ("said", "error"))
    states = [(record.entry.result, record.spent) for record in ledger.state().records]
    assert states == [("made", False)] * counted
    assert not (tmp_path / "made").exists()
    if stop == signal.SIGKILL:
        assert [line.kind for line in ledger.lines()] == [RESERVE] * counted
    else:
        assert (child.exitcode, printed, error.count("\n")) == (130, "", 1)
        assert ("its epsilon counts: entry" in error) is bool(counted)


@pytest.mark.parametrize("said", [Path("/dev/full"), CLOSED])
def test_an_output_that_nobody_reads_costs_no_model(sets, tmp_path, ledger, said: Path) -> None:
    child = FORKS.Process(target=alone, args=(tmp_path, f"{RUN} --out made", said))
    child.start()
    child.join(60)
    assert (tmp_path / "made" / "model.safetensors").exists()
    assert ledger.state().records[0].spent


@pytest.mark.slow
def test_of_two_runs_into_one_directory_one_is_refused_twenty_times(sets, tmp_path, ledger) -> None:
    for place in range(20):
        made = tmp_path / f"race{place}" / "made"
        made.parent.mkdir()
        line = f"{RUN} --out {made}"
        files = [made.parent.parent / f"said{place}{k}" for k in "ab"]
        running = [FORKS.Process(target=alone, args=(tmp_path, line, said)) for said in files]
        for each in running:
            each.start()
        for each in running:
            each.join(300)
        assert sorted(each.exitcode or 0 for each in running) == [0, 2]
        error = (tmp_path / "error").read_text()
        assert error.count("output directory must") == error.count("\n") == place + 1
        assert [path.name for path in made.parent.iterdir()] == ["made"]
        records = ledger.state().records
        assert len(records) == place + 1  # the other one drew no noise: it reserved nothing
        told = json.loads((made / "report.json").read_text())["ledger"]["entry"]
        assert told == records[-1].id
