"""`run` counts what it spends, before it draws noise; `ledger` shows, reserves and limits it."""

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from embed import EmbeddingSet
from train_distributed.one_shot import summation
from train_distributed.privacy.ledger import Ledger
from train_distributed.research.baselines import learn
from train_distributed.research.baselines.learn import ALL_METHODS

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch) -> None:
    """They take longer than all the rest."""
    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", lambda *_: None)


@pytest.fixture
def run(call, sets):
    """Runs class sums on the private set: (exit code, stdout, stderr)."""
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--method", "class-sums"]
    return lambda *more: call(*common, *more)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    return Ledger(tmp_path / "private.ledger")


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
    epsilon = "inf" if method.startswith("non-private") else "9"
    command = ["run", "--embeddings", sets[0], "--public", sets[1], "--epsilon", epsilon]
    command += ["--method", method, "--out", "made"]
    ledger.limit(_limit(0.001))
    code, _, error = call(*command)
    if "needs opacus" in error:
        pytest.skip(error)
    assert code == 2
    assert "limit of ledger private.ledger must be >=" in error
    assert not (tmp_path / "made").exists()
    assert not ledger.state().records


def _limit(epsilon: float):
    from train_distributed.privacy.ledger import Limit

    return Limit(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize(
    ("change", "gaussian", "noise"),
    [
        ([], True, "discrete"),
        (["--seed", "1"], True, "float"),
        (["--method", "gradient-perturbation"], True, "float"),
        (["--method", "gradient-perturbation", "--noise", "discrete"], True, "discrete"),
        (["--method", "output-perturbation"], True, "float"),
        (["--method", "svm", "--scheme", "iid", "--users", "9"], True, "discrete"),
        (["--method", "amp"], False, "float"),
        (["--method", "admm-dual"], False, "float"),
        (["--unit", "user"], True, "discrete"),
    ],
)
def test_simulations_and_rivals_are_counted_as_what_they_promise(
    call, sets, tmp_path, ledger, change, gaussian: bool, noise: str
) -> None:
    command = ["run", "--embeddings", sets[0], "--public", sets[1], "--epsilon", "9"]
    code, _, error = call(*command, "--out", "made", *change)
    assert (code, error) == (0, "")
    (record,) = ledger.state().records
    assert (record.entry.gaussian, record.entry.noise) == (gaussian, noise)
    assert total(ledger) == pytest.approx(9.0, rel=1e-3)
    assert total(ledger, 1e-5) <= 9 * (1 + 1e-9)


def test_what_has_no_noise_is_never_free(run, ledger) -> None:
    assert run("--epsilon", "inf")[0] == 0
    assert total(ledger) == float("inf")


def test_users_of_simulated_partitions_are_other_users(run, ledger) -> None:
    for _ in range(2):
        assert run("--unit", "user", "--scheme", "iid", "--users", "9")[0] == 0
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


def test_a_broken_chain_is_one_line_and_nothing_is_drawn(run, ledger, monkeypatch) -> None:
    assert run()[0] == 0
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"epsilon": 1.0', b'"epsilon": 0.1'))
    monkeypatch.setattr(summation, "discrete_gaussian", lambda *_: pytest.fail("drawn"))
    before = ledger.path.read_bytes()
    code, printed, error = run()
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "ledger must be an unbroken chain of lines, line 1 is altered" in error
    assert ledger.path.read_bytes() == before


def test_a_ledger_that_cannot_be_written_stops_a_run(run, tmp_path) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, printed, error = run("--ledger", "nowhere/rows.ledger", "--out", "made")
    assert (code, printed) == (2, "")
    assert "ledger cannot be written: No such file or directory" in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("name", [0, 1])
def test_out_must_not_hold_what_is_read(run, sets, tmp_path, name: int) -> None:
    before = {path: path.stat().st_size for path in tmp_path.rglob("*")}
    for out in (sets[name], str(tmp_path)):
        code, _, error = run("--out", out, "--overwrite")
        assert code == 2
        assert "out must not hold what the command reads" in error
    assert {path: path.stat().st_size for path in tmp_path.rglob("*")} == before


def test_show_tells_entries_totals_limit_and_head(run, call, sets, tmp_path, ledger) -> None:
    where = ["--embeddings", sets[0]]
    assert call("ledger", "show", *where)[0] == 2
    run("--out", "one")
    run("--out", "two", "--unit", "user")
    promise = ["--epsilon", "2", "--delta", "1e-5"]
    code, printed, _ = call("ledger", "limit", *where, *promise)
    assert code == 0
    assert "limit: epsilon 2 at delta 1e-05 for one record, 1.46" in printed
    code, printed, error = call("ledger", "show", *where, "--reports", "one", "two/report.json")
    assert (code, error) == (0, "")
    assert "-> one" in printed
    assert "one record: epsilon 1.46" in printed
    assert "one user: nothing promised by 1 of 2 entries" in printed
    assert f"head {ledger.state().head}, 5 lines" in printed
    assert "2 report(s) agree with it" in printed
    (tmp_path / "one" / "report.json").rename(tmp_path / "one" / "evaluation.json")
    assert call("ledger", "show", *where, "--reports", "one")[0] == 0
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]))
    code, _, error = call("ledger", "show", *where, "--reports", "one", "two")
    assert code == 2
    assert "must hold the 3 lines that a report has seen" in error
    ledger.path.write_bytes(whole[:-5])
    assert "torn lines: 1" in call("ledger", "show", *where)[1]


def test_reserve_and_spend_by_hand(call, sets, ledger) -> None:
    where = ["--embeddings", sets[0]]
    stated = ["--epsilon", "0.5", "--delta", "1e-6", "--method", "survey", "--part", "train"]
    code, printed, _ = call("ledger", "reserve", *where, *stated)
    assert code == 0
    assert call("ledger", "spend", *where, "--id", printed.strip())[0] == 0
    code, _, error = call("ledger", "spend", *where, "--id", printed.strip())
    assert (code, "not spent yet" in error) == (2, True)
    noise = ["--epsilon", "1", "--delta", "1e-5", "--sigma", "3.7307", "--sensitivity", "1"]
    assert call("ledger", "reserve", *where, *noise, "--part", "train")[0] == 0
    assert total(ledger) == pytest.approx(1.5, abs=0.02)
    file = ["--ledger", "other.ledger", "--data", "letters", "--epsilon", "1", "--delta", "0"]
    assert call("ledger", "reserve", *file)[0] == 0
    limit = ["ledger", "limit", *where, "--delta", "1e-5", "--epsilon"]
    assert call(*limit, "1")[0] == 0
    code, _, error = call("ledger", "reserve", *where, *noise)
    assert code == 2
    assert "limit of ledger private.ledger must be >=" in error
    code, _, error = call(*limit, "3")
    assert code == 2
    assert "(or pass --raise-limit)" in error
    assert "raised 1 time(s)" in call(*limit, "3", "--raise-limit")[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show"], "exactly one of embeddings and ledger must be given, got neither"),
        (["show", "--ledger", "a", "--embeddings", "b"], "must be given, got both"),
        (["show", "--ledger", "none.ledger"], "ledger must exist, got none.ledger"),
        (["show", "--ledger", "."], "ledger must be a file, got ."),
        (["limit", "--ledger", "/dev/null", "--epsilon", "1", "--delta", "1e-5"], "be a file"),
        (["reserve", "--ledger", "a", "--epsilon", "1", "--delta", "1e-5"], "embeddings and data"),
        (["reserve", "--embeddings", "no", "--epsilon", "1", "--delta", "1e-5"], "existing dir"),
        (["limit", "--ledger", "a", "--epsilon", "0", "--delta", "1e-5"], "epsilon must be > 0"),
        (["limit", "--ledger", "a", "--epsilon", "1", "--delta", "2"], "delta must be in (0, 1)"),
        (["spend", "--ledger", "a", "--id", "x"], "id must be of an entry in the ledger, got 'x'"),
    ],
)
def test_bad_input_of_ledger_is_one_line(call, tmp_path, arguments, message) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, printed, error = call("ledger", *arguments)
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("text", [b"{}", b"[]", b"nonsense", b'{"ledger": "none"}'])
def test_reports_without_a_ledger_are_refused(run, call, sets, tmp_path, text: bytes) -> None:
    run("--out", "made")
    (tmp_path / "other.json").write_bytes(text)
    code, _, error = call("ledger", "show", "--embeddings", sets[0], "--reports", "other.json")
    assert code == 2
    assert "reports must be of results with a ledger" in error


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one megabyte, which a release and its pictures do not fit."""
    place = tmp_path / "small"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


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


def race(sets, folder: Path, *more: str) -> list[tuple[int, str]]:
    """Two runs into one directory at once: (exit code, last line said) of each."""
    command = [sys.executable, "-m", "train_distributed", "run", "--embeddings", sets[0]]
    command += ["--public", sets[1], "--method", "class-sums", "--out", str(folder / "made"), *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, cwd=ROOT, **pipes) for _ in range(2)]
    said = [process.communicate(timeout=300) for process in running]
    return [(p.returncode, error) for p, (_, error) in zip(running, said, strict=True)]


def check_race(sets, folder: Path, ledger: Ledger, spent: int) -> None:
    (won, _), (lost, error) = sorted(race(sets, folder))
    assert (won, lost) == (0, 2), error
    assert "output directory must" in error
    assert error.count("\n") == 1
    assert sorted(p.name for p in folder.iterdir()) == ["made"]
    records = ledger.state().records
    assert len(records) == spent + 1  # the other one drew no noise: it reserved nothing
    assert report(folder / "made")["ledger"]["entry"] == records[-1].id


def test_a_run_into_a_directory_that_another_writes_draws_no_noise(
    run, ledger, tmp_path, monkeypatch
) -> None:
    """The second begins while the first one's noise is drawn."""
    real, met = learn.learn, []

    def meet(*args, **more):
        if not met:
            met.append(None)
            met.append(run("--out", "made"))
            assert not ledger.path.exists()
        return real(*args, **more)

    monkeypatch.setattr(learn, "learn", meet)
    assert run("--out", "made")[0] == 0
    code, printed, error = met[1]
    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "must be written by one command at a time" in error
    (record,) = ledger.state().records
    assert report(tmp_path / "made")["ledger"]["entry"] == record.id


@pytest.mark.slow
def test_of_two_runs_into_one_directory_one_is_refused_twenty_times(sets, tmp_path, ledger) -> None:
    for place in range(20):
        folder = tmp_path / f"race{place}"
        folder.mkdir()
        check_race(sets, folder, ledger, place)


def test_a_run_refused_for_its_directory_spends_nothing(run, tmp_path, ledger) -> None:
    (tmp_path / "made").mkdir()
    assert run("--out", "made")[0] == 2
    assert not ledger.path.exists()


def test_an_interruption_says_that_what_was_reserved_counts(run, ledger, monkeypatch) -> None:
    def interrupted(std, count):
        raise KeyboardInterrupt

    monkeypatch.setattr(summation, "add_noise", lambda *_: interrupted(0, 0))
    code, printed, error = run("--out", "made")
    assert (code, printed, error.count("\n")) == (130, "", 1)
    (record,) = ledger.state().records
    assert f"its epsilon counts: entry {record.id} in {ledger.path}" in error
