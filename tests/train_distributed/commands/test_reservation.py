"""`run` counts what it spends, before it draws noise, or does not run; `ledger` shows it."""

import contextlib
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot import summation
from train_distributed.one_shot.registry import METHODS
from train_distributed.privacy import mechanism
from train_distributed.research.rivals.learn import ALL_METHODS

pytestmark = pytest.mark.usefixtures("no_pictures", "sets")
SETS = "--embeddings private --public public"


def report(out: str) -> dict:
    return json.loads(Path(out, "report.json").read_text())


def total(ledger: Ledger, delta: float = 1e-5) -> float:
    return Ledger.open(ledger.path).total().epsilon(delta)


def test_every_run_on_a_set_is_counted_beside_it(run, ledger) -> None:
    for name, total_so_far in (("one", "1"), ("two", "1.46517")):
        printed = run.done("--out", name)
        assert f"private.ledger: epsilon {total_so_far} at delta 1e-05 in all" in printed
    first, second = ledger.state().records
    assert [r.entry.kind for r in (first, second)] == ["release", "re-release"]
    assert [(r.entry.result, r.spent) for r in (first, second)] == [("one", True), ("two", True)]
    assert (first.entry.noise, first.entry.part) == ("discrete", "train")
    assert report("two")["ledger"]["entry"] == second.id
    assert report("two")["ledger"]["epsilon_total"] == pytest.approx(total(ledger))
    assert report("one")["ledger"]["epsilon_total"] == pytest.approx(1.0, abs=1e-9)
    assert 1.4 < total(ledger) < 1.5


def test_the_ledger_outlives_the_set_it_is_of(run, ledger) -> None:
    """The set is embedded anew, by another encoder: the same people, so it adds up."""
    run.done()
    before = EmbeddingSet.open("private")
    meta = {"class_names": ["a", "b", "c"]}
    anew = replace(before, embeddings=np.asarray(before.embeddings)[:, ::-1] * 0.5, meta=meta)
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
    epsilon = "inf" if method.startswith("non-private") else "9"
    command = f"run --method {method}" if method in METHODS else f"rival {method}"
    ledger.limit(Limit(epsilon=0.001, delta=1e-5))
    code, _, error = call(f"{command} {SETS} --epsilon {epsilon} --out made")
    if "dp-fl must have opacus" in error:
        pytest.skip(error)
    assert code == 2
    assert "limit of ledger private.ledger must be >=" in error
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
        ("rival output-perturbation", True, "float"),
        ("rival dp-svm-smo", True, "float"),
        ("rival amp", False, "float"),
        ("rival admm-dual", False, "float"),
    ],
)
def test_simulations_and_rivals_are_counted_as_what_they_promise(
    call, ledger, typed: str, gaussian: bool, noise: str
) -> None:
    call.done(f"{typed} {SETS} --epsilon 9 --out made")
    (record,) = ledger.state().records
    assert (record.entry.gaussian, record.entry.noise) == (gaussian, noise)
    assert total(ledger) == pytest.approx(9.0, rel=1e-3)
    assert total(ledger, 1e-5) <= 9 * (1 + 1e-9)
    of_gradients = "rival gradient-perturbation --noise discrete"
    for_release = typed in ("run", "run --unit user", of_gradients)
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
    printed = run.done("--ledger", "none", "--out", "made")
    assert re.search(r"^ledger +none$", printed, re.MULTILINE)
    assert report("made")["ledger"] == "none"
    run.done("--ledger", "central.ledger")
    run.refused("", "central.ledger, which counts these rows already")
    assert not ledger.path.exists()
    central = Path("central.ledger").resolve()
    run.done("--ledger", str(central))
    assert len(Ledger(central).state().records) == 2


def test_a_full_disk_is_one_line_before_any_noise_is_drawn(run, ledger, small_disk) -> None:
    free = "bytes must be free for the result: No space left on device"
    run.refused(f"--out {small_disk}/made", free)
    assert not list(small_disk.iterdir())
    assert not ledger.path.exists()


def test_a_full_disk_of_the_ledger_stops_a_run(run, small_disk) -> None:
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 4096))
    (small_disk / "rows.ledger").write_bytes(b"")
    with contextlib.suppress(OSError):
        (small_disk / "rest").write_bytes(bytes(1 << 13))
    full = "ledger cannot be written: No space left on device"
    run.refused(f"--out made --ledger {small_disk}/rows.ledger", full)
    assert not Path("made").exists()
    assert not Ledger.open(small_disk / "rows.ledger").state().records


def test_a_run_on_an_altered_ledger_or_a_broken_centre_draws_nothing(
    run, ledger, monkeypatch
) -> None:
    run.done()
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"epsilon": 1.0', b'"epsilon": 0.1'))
    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    before = ledger.path.read_bytes()
    run.refused("", "must be an unbroken chain of entries, entry 1 is altered")
    assert ledger.path.read_bytes() == before
    ledger.path.unlink()
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
    assert re.search(", noise by users -> one$", printed, re.MULTILINE)
    assert re.search(", noise by servers -> two$", printed, re.MULTILINE)
    assert "one record: epsilon 1.46" in printed
    assert "one user: nothing promised by 1 of 2 entries" in printed
    assert f"head {ledger.state().head}, 5 lines" in printed
    assert "2 report(s) agree with it" in printed
    Path("one", "report.json").rename(Path("one", "evaluation.json"))
    call.done(f"{show} --reports one")
    shown = json.loads(call(f"{show} --json")[1])
    assert [line["kind"] for line in shown["lines"]] == ["reserve", "spend"] * 2 + ["limit"]
    follow = [line["previous"] for line in shown["lines"][1:]]
    assert follow == [line["hash"] for line in shown["lines"][:-1]]
    assert shown["lines"][-1]["hash"] == shown["head"] == ledger.state().head
    assert shown["totals"]["record"]["epsilon"] == pytest.approx(ledger.total().epsilon(1e-5))
    assert shown["totals"]["user"]["epsilon"] == "inf"
    ledger.path.unlink()
    call.done(f"{limit} --epsilon 2 --delta 1e-5")
    call.refused(f"{show} --reports one two", "must hold the 1 lines that a report has seen")


def test_reserve_and_spend_by_hand(call, ledger) -> None:
    reserve, spend, limit = (
        f"ledger {word} --embeddings private" for word in ("reserve", "spend", "limit")
    )
    printed = call.done(f"{reserve} --epsilon .5 --delta 1e-6 --method survey --part train")
    call.done(f"{spend} --id {printed}")
    call.refused(f"{spend} --id {printed}", "not spent yet")
    noise = "--epsilon 1 --delta 1e-5 --sigma 3.7307 --sensitivity 1"
    call.done(f"{reserve} {noise} --part train")
    assert ledger.total().epsilon(1e-5) == pytest.approx(1.5, abs=0.02)
    file = "--ledger other.ledger --data letters --epsilon 1 --delta 0"
    call.done(f"ledger reserve {file}")
    call.done(f"{limit} --delta 1e-5 --epsilon 1")
    call.refused(f"{reserve} {noise}", "limit of ledger private.ledger must be >=")
    call.refused(f"{limit} --delta 1e-5 --epsilon 3", "(or pass --raise-limit)")
    assert "raised 1 time(s)" in call(f"{limit} --delta 1e-5 --epsilon 3 --raise-limit")[1]
