"""`run` counts before it draws noise, or does not run; stopped, it says what counts."""

import contextlib
import errno
import json
import multiprocessing
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.__main__ import main
from train_distributed.commands import releasing
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.ledger.reservation import LedgerReservation
from train_distributed.ledger.state import GIVE_BACK, RESERVE
from train_distributed.one_shot import figure, release, source, summation
from train_distributed.one_shot.registry import METHODS
from train_distributed.privacy import mechanism
from train_distributed.released import evaluate
from train_distributed.research.rivals.learn import ALL_METHODS
from train_distributed.store.store import Store

pytestmark = pytest.mark.usefixtures("no_pictures", "sets")
SETS = "--embeddings private --public public"


def report(out: str) -> dict:
    return json.loads(Path(out, "report.json").read_text())


def total(ledger: Ledger) -> float:
    return Ledger.open(ledger.path).total().epsilon(1e-5)


def test_every_run_on_a_set_is_counted_beside_it(run, ledger) -> None:
    for name, total_so_far in (("one", "1"), ("two", "1.46517")):
        printed = run.done("--out", name)
        assert f"private.ledger: epsilon {total_so_far} at delta 1e-05 in all" in printed
        told, record = report(name)["ledger"], ledger.state().records[-1]
        assert (told["entry"], told["epsilon_total"]) == (record.id, pytest.approx(total(ledger)))
        assert (record.entry.result, record.spent) == (name, True)
        assert (record.entry.noise, record.entry.part) == ("discrete", "train")
    assert [r.entry.kind for r in ledger.state().records] == ["release", "re-release"]
    assert 1.4 < total(ledger) < 1.5


def test_the_ledger_outlives_the_set_it_is_of(run, ledger) -> None:
    """The set is embedded anew, by another encoder: the same people, so it adds up."""
    run.done()
    before = EmbeddingSet.open("private")
    anew = replace(before, embeddings=np.asarray(before.embeddings)[:, ::-1] * 0.5)
    anew.meta.pop("content_hash", None)
    anew.save(Path("private"), overwrite=True)
    run.done()
    assert len({r.entry.data for r in ledger.state().records}) == 2
    assert total(ledger) > 1.4


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_is_counted_before_its_noise(call, ledger, method) -> None:
    """A ledger that refuses stops it: nothing is written, nothing was drawn."""
    if method in METHODS and not METHODS[method].classes:
        held = EmbeddingSet.open("private")
        findings = np.eye(3, dtype=np.int8)[held.labels]
        held = replace(held, labels=np.full(len(held), -1), findings=findings)
        held.save(Path("private"), overwrite=True)
    if method == "dp-fl":
        pytest.importorskip("opacus")
    epsilon = "inf" if method.startswith("non-private") else "9"
    command = f"run --method {method}" if method in METHODS else f"rival {method}"
    ledger.limit(Limit(epsilon=0.001, delta=1e-5))
    line = f"{command} {SETS} --epsilon {epsilon} --out made"
    call.refused(line, "limit of ledger private.ledger must be >=")
    assert not Path("made").exists()
    assert not ledger.state().records


@pytest.mark.parametrize(
    ("typed", "gaussian", "noise"),
    [
        ("run", True, "discrete"),
        ("run --seed 1", True, "float"),
        ("run --unit user", True, "discrete"),
        ("simulate --users 9 --noise discrete --ledger private.ledger", True, "discrete"),
        ("rival gradient-perturbation", True, "float"),
        ("rival gradient-perturbation --noise discrete", True, "discrete"),
        ("rival amp", False, "float"),
        ("rival admm-dual", False, "float"),
    ],
)
def test_each_is_counted_as_what_it_promises(call, ledger, typed, gaussian, noise) -> None:
    call.done(f"{typed} {SETS} --epsilon 9 --out made")
    (record,) = ledger.state().records
    assert (record.entry.gaussian, record.entry.noise) == (gaussian, noise)
    assert total(ledger) == pytest.approx(9.0, rel=1e-3)
    assert total(ledger) <= 9 * (1 + 1e-9)
    for_release = noise == "discrete" and not typed.startswith("simulate")
    assert report("made")["suitable_for_release"] is for_release


def test_no_noise_is_never_free_nor_are_users_of_other_partitions(run, call, ledger) -> None:
    assert "not private" in run.done("--epsilon inf")
    assert total(ledger) == float("inf")
    ledger.path.unlink()
    command = f"simulate {SETS} --unit user --users 9 --noise float --ledger private.ledger"
    for seed in (1, 2):
        call.done(f"{command} --seed {seed}")
    assert ledger.total("user").epsilon(1e-5) == float("inf")
    assert ledger.total("record").epsilon(1e-5) < 2


def test_a_ledger_is_elsewhere_or_none_unless_another_counts_the_rows(run, ledger) -> None:
    assert re.search(r"^ledger +none$", run.done("--ledger none --out made"), re.MULTILINE)
    assert report("made")["ledger"] == "none"
    run.done("--ledger", "central.ledger")
    run.refused("", "central.ledger, which counts these rows already")
    assert not ledger.path.exists()
    central = Path("central.ledger").resolve()
    run.done("--ledger", str(central))
    assert len(Ledger(central).state().records) == 2


def test_a_full_disk_of_the_ledger_stops_a_run(run, small_disk) -> None:
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 4096))
    (small_disk / "rows.ledger").write_bytes(b"")
    with contextlib.suppress(OSError):
        (small_disk / "rest").write_bytes(bytes(1 << 13))
    full = "ledger cannot be written: No space left on device"
    run.refused(f"--out made --ledger {small_disk}/rows.ledger", full)
    assert not Path("made").exists()
    assert not Ledger.open(small_disk / "rows.ledger").state().records


def test_a_run_on_a_broken_centre_draws_nothing(run, ledger, monkeypatch) -> None:
    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    ledger.path.with_name("private.ledger.centre").write_text("[]")
    run.refused("", "private.ledger.centre must be a JSON object")
    assert not ledger.state().records


@pytest.mark.parametrize("asked", ["", "--method softmax", "--unit user --user-clip 9 9"])
def test_the_next_try_of_a_failed_second_sum_is_about_the_same_centre(
    call, ledger, monkeypatch, asked
) -> None:
    """The first sum is opened once; another release does not take its centre."""
    honest, noised = summation.RunningSum.total, []

    def opened(self):
        found = honest(self)
        noised.append(len(found))
        if fails and len(noised) == 2:
            raise KeyboardInterrupt
        return found

    def run(more: str) -> tuple[int, str, str]:
        noised.clear()
        return call(f"run {SETS} {asked} {more}")

    monkeypatch.setattr(summation.RunningSum, "total", opened)
    fails, kept = True, ledger.path.with_name("private.ledger.centre")
    assert run("--out made")[0] == 130
    (failed,) = ledger.state().records
    centre = json.loads(kept.read_text())
    assert centre["entry"] == failed.id
    first, second = noised
    fails = False
    assert run("--epsilon 2 --out other")[0] == 0
    assert (len(noised), noised[0]) == (2, first)
    assert not kept.exists()
    kept.write_text(json.dumps(centre))
    assert run("--out made")[0] == 0
    assert noised == [second]
    assert report("made")["ledger"]["centre_of_entry"] == failed.id
    assert report("made")["epsilon"] == 1.0
    assert not kept.exists()
    _, other, again = ledger.state().records
    noise, before = (each.entry.sigma / each.entry.sensitivity for each in (again, failed))
    assert noise == pytest.approx(before / 0.9**0.5, rel=1e-3)
    assert other.entry.epsilon == 2.0
    assert run("--out third")[0] == 0  # nothing is left of it
    assert noised == [first, second]
    kept.write_text(json.dumps(centre))
    ledger.path.unlink()
    code, _, error = run("--out made --overwrite")
    assert (code, noised, ledger.path.exists()) == (2, [], False)
    assert "id must be of an entry in the ledger, got" in error


def test_show_tells_entries_totals_limit_and_head(run, call, ledger) -> None:
    show, limit = (f"ledger {word} --embeddings private" for word in ("show", "limit"))
    assert call(show)[0] == 2
    run("--out one")
    run("--out two --unit user --noise-by servers")
    printed = call.done(f"{limit} --epsilon 2 --delta 1e-5")
    assert "limit: epsilon 2 at delta 1e-05 for one record, 1.46" in printed
    printed = call.done(f"{show} --reports one two/report.json")
    for words in (
        "noise by users -> one\n",
        "noise by servers -> two\n",
        "one record: epsilon 1.46",
        "one user: nothing promised by 1 of 2 entries",
        f"head {ledger.state().head}, 5 lines",
        "2 report(s) agree with it",
    ):
        assert words in printed
    Path("one", "report.json").rename(Path("one", "evaluation.json"))
    call.done(f"{show} --reports one")
    shown = json.loads(call.done(f"{show} --json"))
    assert [line["kind"] for line in shown["lines"]] == ["reserve", "spend"] * 2 + ["limit"]
    hashes = [line["hash"] for line in shown["lines"]]
    assert [line["previous"] for line in shown["lines"][1:]] == hashes[:-1]
    assert hashes[-1] == shown["head"] == ledger.state().head
    assert shown["totals"]["record"]["epsilon"] == pytest.approx(ledger.total().epsilon(1e-5))
    assert shown["totals"]["user"]["epsilon"] == "inf"
    ledger.path.unlink()
    call.done(f"{limit} --epsilon 2 --delta 1e-5")
    call.refused(f"{show} --reports one two", "must hold the 1 lines that a report has seen")


def test_reserve_and_spend_by_hand(call, ledger) -> None:
    reserve, spend, limit = (
        f"ledger {word} --embeddings private" for word in ("reserve", "spend", "limit")
    )
    id = call.done(f"{reserve} --epsilon .5 --delta 1e-6 --method survey --part train")
    call.done(f"{spend} --id {id}")
    call.refused(f"{spend} --id {id}", "not spent yet")
    elsewhere = f"{reserve} --epsilon .5 --delta 1e-6 --ledger far.ledger"
    call.refused(elsewhere, "private.ledger, which counts these rows already")
    noise = "--epsilon 1 --delta 1e-5 --sigma 3.7307 --sensitivity 1"
    call.done(f"{reserve} {noise} --part train")
    assert ledger.total().epsilon(1e-5) == pytest.approx(1.5, abs=0.02)
    call.done("ledger reserve --ledger other.ledger --data letters --epsilon 1 --delta 0")
    call.done(f"{limit} --delta 1e-5 --epsilon 1")
    call.refused(f"{reserve} {noise}", "limit of ledger private.ledger must be >=")
    call.refused(f"{limit} --delta 1e-5 --epsilon 3", "(or pass --raise-limit)")
    assert "raised 1 time(s)" in call.done(f"{limit} --delta 1e-5 --epsilon 3 --raise-limit")


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
def test_so_of_an_evaluation(say, monkeypatch, stop: signal.Signals) -> None:
    say.done("embed hold-out --embeddings private --share 0.4 --out held")
    say.done(f"{RUN} --embeddings held --epsilon 5 --out model")
    held, said = Ledger(Path("held.ledger")), []
    of_model = held.lines()
    for owner, name, after, records in (
        (evaluate, "submissions", False, 1),
        (Store, "append", True, 1),
        (mechanism, "add_noise", True, 2),
    ):
        with monkeypatch.context() as patch:
            stop_at(patch, owner, name, stop, after=after)
            said.append(say("evaluate --embeddings held --model model --epsilon 2"))
        assert len(held.state().records) == records
        assert after or held.lines() == of_model
    record = held.state().records[-1]
    assert said[:2] == [NOTHING] * 2
    assert (said[2][0], record.entry.kind) == (130, "evaluation")
    assert f"nothing was written; its epsilon counts: entry {record.id} in " in said[2][2]
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


def alone(folder: Path, said: Path, place: int | None = None) -> None:
    """A run in a process of its own, which may be killed at one of the places."""
    os.chdir(folder)
    reading, writing = os.pipe()
    os.close(reading)
    if said != CLOSED:
        writing = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    sys.stdout = os.fdopen(writing, "w", buffering=1)
    figure.draw_release = lambda *_, **__: None
    if place is not None:
        owner, name, after, _ = PLACES[place]
        stop_at(pytest.MonkeyPatch(), owner, name, signal.SIGKILL, after)
    sys.argv[:] = ["blind-averaging", *RUN.split(), "--out", "made"]
    sys.exit(main())


@pytest.mark.parametrize("place", range(len(PLACES)))
def test_a_process_that_is_killed_at_any_point(tmp_path, ledger, place: int) -> None:
    """Nothing stays but what was drawn, or the whole model, and its entry."""
    child = FORKS.Process(target=alone, args=(tmp_path, tmp_path / "said", place))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    left = PLACES[place][-1]
    kinds = [line.kind for line in ledger.lines()]
    assert kinds[:1] == [RESERVE] * (left in ("counts", "written"))
    assert left == "written" or len(kinds) < 2
    assert (tmp_path / "made").exists() == (left == "written")


@pytest.mark.parametrize("said", [Path("/dev/full"), CLOSED])
def test_an_output_that_nobody_reads_costs_no_model(tmp_path, ledger, said: Path) -> None:
    child = FORKS.Process(target=alone, args=(tmp_path, said))
    child.start()
    child.join(60)
    assert (tmp_path / "made" / "model.safetensors").exists()
    assert ledger.state().records[0].spent
