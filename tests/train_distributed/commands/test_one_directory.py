"""Of commands that write one directory one is counted and the others draw no noise."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot import release

ROOT = Path(__file__).parents[3]


def report(out: Path) -> dict:
    return json.loads((out / "report.json").read_text())


def race(sets, folder: Path, *more: str) -> list[tuple[int, str]]:
    """Two runs into one directory at once: (exit code, last line said) of each."""
    command = [sys.executable, "-m", "train_distributed", "run", "--embeddings", sets[0]]
    command += [
        "--public",
        sets[1],
        "--method",
        "discriminant",
        "--sums",
        "1",
        "--out",
        str(folder / "made"),
        *more,
    ]
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
    real, met = release.release_of, []

    def meet(request):
        if not met:
            met.append(None)
            met.append(run("--out", "made"))
            assert not ledger.path.exists()
        return real(request)

    monkeypatch.setattr(release, "release_of", meet)
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
