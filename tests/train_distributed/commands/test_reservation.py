"""`run` counts what it spends, before it draws noise, or does not run."""

import contextlib
import json
import re
from dataclasses import replace
from functools import partial
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

pytestmark = pytest.mark.usefixtures("no_pictures")
COUNTED = ("--ledger", "private.ledger")  # which `simulate` must be asked for


def report(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def total(ledger: Ledger, delta: float = 1e-5) -> float:
    return Ledger.open(ledger.path).total().epsilon(delta)


def test_every_run_on_a_set_is_counted_beside_it(run, ledger, tmp_path) -> None:
    for name, total_so_far in (("one", "1"), ("two", "1.46517")):
        code, printed, _ = run("--out", name)
        assert code == 0
        assert f"private.ledger: epsilon {total_so_far} at delta 1e-05 in all" in printed
    first, second = ledger.state().records
    assert [r.entry.kind for r in (first, second)] == ["release", "re-release"]
    assert [r.entry.result for r in (first, second)] == ["one", "two"]
    assert first.spent
    assert second.spent
    assert (first.entry.noise, first.entry.part) == ("discrete", "train")
    told = report(tmp_path / "two")["ledger"]
    assert told["entry"] == second.id
    assert told["epsilon_total"] == pytest.approx(total(ledger))
    assert report(tmp_path / "one")["ledger"]["epsilon_total"] == pytest.approx(1.0, abs=1e-9)
    assert 1.4 < total(ledger) < 1.5


def test_the_ledger_outlives_the_set_it_is_of(run, call, sets, ledger) -> None:
    """The set is embedded anew, by another encoder: the same people, so it adds up."""
    assert run()[0] == 0
    before = EmbeddingSet.open(sets[0])
    EmbeddingSet(
        embeddings=before.embeddings[:, ::-1] * 0.5,
        labels=before.labels,
        users=before.users,
        split=before.split,
        meta={"class_names": ["a", "b", "c"]},
    ).save(Path(sets[0]), overwrite=True)
    assert run()[0] == 0
    assert len({r.entry.data for r in ledger.state().records}) == 2
    assert total(ledger) > 1.4


@pytest.mark.parametrize("method", ALL_METHODS)
def test_every_method_is_counted_before_its_noise(
    call, sets, tmp_path, ledger, method, monkeypatch
) -> None:
    """A ledger that refuses stops it: nothing is written, nothing was drawn."""
    if method in METHODS and not METHODS[method].classes:
        held = EmbeddingSet.open(sets[0])
        findings = np.eye(3, dtype=np.int8)[held.labels]
        held = replace(held, labels=np.full(len(held), -1), findings=findings)
        held.save(Path(sets[0]), overwrite=True)
    epsilon = "inf" if method.startswith("non-private") else "9"
    command = ["run", "--method", method] if method in METHODS else ["rival", method]
    command += ["--embeddings", sets[0], "--public", sets[1], "--epsilon", epsilon]
    command += ["--out", "made"]
    ledger.limit(Limit(epsilon=0.001, delta=1e-5))
    code, _, error = call(*command)
    if "dp-fl must have opacus" in error:
        pytest.skip(error)
    assert code == 2
    assert "limit of ledger private.ledger must be >=" in error
    assert not (tmp_path / "made").exists()
    assert not ledger.state().records


@pytest.mark.parametrize(
    ("change", "gaussian", "noise"),
    [
        (["run"], True, "discrete"),
        (["run", "--seed", "1"], True, "float"),
        (["rival", "gradient-perturbation"], True, "float"),
        (["rival", "gradient-perturbation", "--noise", "discrete"], True, "discrete"),
        (["rival", "output-perturbation"], True, "float"),
        (["simulate", "--users", "9", "--noise", "discrete", *COUNTED], True, "discrete"),
        (["rival", "amp"], False, "float"),
        (["rival", "admm-dual"], False, "float"),
        (["run", "--unit", "user"], True, "discrete"),
    ],
)
def test_simulations_and_rivals_are_counted_as_what_they_promise(
    call, sets, tmp_path, ledger, change, gaussian: bool, noise: str
) -> None:
    command = ["--embeddings", sets[0], "--public", sets[1], "--epsilon", "9"]
    code, _, error = call(*change, *command, "--out", "made")
    assert (code, error) == (0, "")
    (record,) = ledger.state().records
    assert (record.entry.gaussian, record.entry.noise) == (gaussian, noise)
    assert total(ledger) == pytest.approx(9.0, rel=1e-3)
    assert total(ledger, 1e-5) <= 9 * (1 + 1e-9)


def test_what_has_no_noise_is_never_free(run, ledger) -> None:
    assert run("--epsilon", "inf")[0] == 0
    assert total(ledger) == float("inf")


def test_users_of_simulated_partitions_are_other_users(call, sets, ledger) -> None:
    command = ["simulate", "--embeddings", sets[0], "--public", sets[1], *COUNTED]
    command += ["--unit", "user", "--users", "9", "--noise", "float"]
    for seed in ("1", "2"):
        assert call(*command, "--seed", seed)[0] == 0
    assert ledger.total("user").epsilon(1e-5) == float("inf")
    assert ledger.total("record").epsilon(1e-5) < 2


def test_without_a_ledger_nothing_is_kept_and_the_report_says_so(run, ledger, tmp_path) -> None:
    code, printed, _ = run("--ledger", "none", "--out", "made")
    assert code == 0
    assert re.search(r"^ledger +none$", printed, re.MULTILINE)
    assert not ledger.path.exists()
    assert report(tmp_path / "made")["ledger"] == "none"


def test_a_ledger_elsewhere_is_taken_unless_another_counts_the_rows(run, tmp_path) -> None:
    assert run("--ledger", "central.ledger")[0] == 0
    code, _, error = run()
    assert code == 2
    assert "central.ledger, which counts these rows already" in error
    assert run("--ledger", str(tmp_path / "central.ledger"))[0] == 0
    assert len(Ledger(tmp_path / "central.ledger").state().records) == 2


def test_a_full_disk_is_one_line_before_any_noise_is_drawn(run, ledger, small_disk) -> None:
    code, printed, error = run("--out", str(small_disk / "made"))
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "bytes must be free for the result: No space left on device" in error
    assert not list(small_disk.iterdir())
    assert not ledger.path.exists()


def test_a_full_disk_of_the_ledger_stops_a_run(run, tmp_path, small_disk) -> None:
    (small_disk / "filler").write_bytes(bytes((1 << 20) - 4096))
    (small_disk / "rows.ledger").write_bytes(b"")
    with contextlib.suppress(OSError):
        (small_disk / "rest").write_bytes(bytes(1 << 13))
    code, printed, error = run("--out", "made", "--ledger", str(small_disk / "rows.ledger"))
    assert (code, printed) == (2, "")
    assert "ledger cannot be written: No space left on device" in error
    assert not (tmp_path / "made").exists()
    assert not Ledger.open(small_disk / "rows.ledger").state().records


def test_a_run_on_an_altered_ledger_draws_nothing(run, ledger, monkeypatch) -> None:
    assert run()[0] == 0
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"epsilon": 1.0', b'"epsilon": 0.1'))
    monkeypatch.setattr(mechanism, "add_noise", lambda *_: pytest.fail("drawn"))
    before = ledger.path.read_bytes()
    code, printed, error = run()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "must be an unbroken chain of entries, entry 1 is altered" in error
    assert ledger.path.read_bytes() == before


@pytest.mark.parametrize("name", [0, 1])
def test_out_must_not_hold_what_is_read(run, sets, tmp_path, name: int) -> None:
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    for out in (sets[name], str(tmp_path)):  # the set itself, and the folder around it
        code, _, error = run("--out", out, "--overwrite")
        assert code == 2
        assert "out must not hold what the command reads" in error
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def test_an_interruption_says_that_what_was_reserved_counts(run, ledger, monkeypatch) -> None:
    def interrupted(std, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(mechanism, "add_noise", lambda *_: interrupted(0, 0))
    code, printed, error = run("--out", "made")
    assert (code, printed, error.count("\n")) == (130, "", 1)
    (record,) = ledger.state().records
    assert f"its epsilon counts: entry {record.id} in {ledger.path}" in error


@pytest.mark.parametrize(
    "asked", [[], ["--method", "softmax"], ["--unit", "user", "--user-clip", "9", "9"]]
)
def test_the_next_try_of_a_failed_second_sum_is_about_the_same_centre(
    call, sets, ledger, tmp_path, monkeypatch, asked
) -> None:
    """The first sum is opened once; another release does not take its centre."""
    honest, noised = summation.RunningSum.total, []

    def total(self):
        opened = honest(self)
        noised.append(len(opened))
        if fails and len(noised) == 2:
            raise KeyboardInterrupt
        return opened

    monkeypatch.setattr(summation.RunningSum, "total", total)
    run = partial(call, "run", "--embeddings", sets[0], "--public", sets[1], *asked)
    fails, kept = True, ledger.path.with_name("private.ledger.centre")
    assert run("--out", "made")[0] == 130
    (failed,) = ledger.state().records
    centre = json.loads(kept.read_text())
    assert centre["entry"] == failed.id
    first, second = noised
    fails = False
    noised.clear()
    assert run("--epsilon", "2", "--out", "other")[0] == 0
    assert (len(noised), noised[0]) == (2, first)
    assert not kept.exists()
    kept.write_text(json.dumps(centre))
    noised.clear()
    code, _, error = run("--out", "made")
    assert (code, error) == (0, "")
    assert noised == [second]
    told = report(tmp_path / "made")
    assert told["ledger"]["centre_of_entry"] == failed.id
    assert told["epsilon"] == 1.0
    assert not kept.exists()
    _, other, again = ledger.state().records
    assert again.entry.sigma / again.entry.sensitivity == pytest.approx(
        failed.entry.sigma / failed.entry.sensitivity / 0.9**0.5, rel=1e-3
    )
    assert other.entry.epsilon == 2.0
    noised.clear()
    assert run("--out", "third")[0] == 0  # nothing is left of it
    assert noised == [first, second]


def test_a_broken_centre_is_refused_before_anything_is_counted(run, ledger, monkeypatch) -> None:
    kept = ledger.path.with_name("private.ledger.centre")
    kept.write_text("[]")
    code, _, error = run()
    assert (code, error.count("\n")) == (2, 1)
    assert "private.ledger.centre must be a JSON object" in error
    assert not ledger.state().records
