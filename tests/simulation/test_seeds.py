"""Many federations, each replayed from its number; planted faults, each found within 1,000.

A failing seed: `python -c "from tests.simulation.test_seeds import run; run(SEED)"`.
"""

import os
import random
from collections.abc import Callable

import pytest

from tests.simulation.federation import Federation, Wrong
from train_distributed.proofs import field
from train_distributed.secure_sum.aggregator import Helper
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.report_store import ADDED, ReportStore

SEEDS, MANY = 40, int(os.environ.get("SEEDS", 10_000))


def run(seed: int) -> list[str]:
    """Runs one federation; raises Wrong with its number, and how it came to it."""
    federation = Federation(random.Random(seed))
    try:
        federation.run()
    except (Wrong, ProtocolError) as error:
        raise Wrong(f"seed {seed}: {error}; last: {federation.log[-12:]}") from error
    return federation.log


def test_federations_open_exact_sums() -> None:
    said = [line for seed in range(SEEDS) for line in run(seed)]
    for what in ("killed", "answer lost", "no verdicts", "stray job", "NotYet"):
        assert any(what in line for line in said), what


@pytest.mark.slow
def test_many_federations_open_exact_sums() -> None:
    for seed in range(MANY):
        run(seed)


def test_a_run_is_its_seed() -> None:
    logs = [run(7) for _ in range(2)]
    assert logs[0] == logs[1]
    assert run(8) != logs[0]


def acknowledged_before_the_disk(patch: pytest.MonkeyPatch) -> None:
    """Reports are written with the next ones."""
    keep = ReportStore.keep

    def later(self: ReportStore, reports):
        waiting = vars(self).setdefault("_waiting", [])
        kept = keep(self, waiting)
        waiting[:] = reports
        return kept | {user: digest for user, digest, _ in reports}

    patch.setattr(ReportStore, "keep", later)


def noise_drawn_again(patch: pytest.MonkeyPatch) -> None:
    def noised(self: ReportStore, draw: Callable):
        with self._sql.transaction() as run:
            (content,) = run("SELECT content FROM total").fetchone()
        return draw(field.decode(bytes(content)[32:]))

    patch.setattr(ReportStore, "noised", noised)


def report_added_twice(patch: pytest.MonkeyPatch) -> None:
    """The helper does not look whether it has decided a report before."""

    def add(self: ReportStore, lines, total) -> bool:
        with self._sql.transaction() as run:
            for user, line in lines.items():
                run(
                    "INSERT OR REPLACE INTO report VALUES (?, ?, ?, ?)",
                    (user, line.digest, ADDED, line.content),
                )
            self._add(run, total)
        return True

    prepare = Helper.prepare

    def forgetful(self: Helper, message: bytes) -> bytes:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(ReportStore, "lines", lambda store, users: {})
            return prepare(self, message)

    patch.setattr(ReportStore, "add", add)
    patch.setattr(Helper, "prepare", forgetful)


def set_signed_twice(patch: pytest.MonkeyPatch) -> None:
    """The last claim counts, and the window stays open."""

    def claim(self: ReportStore, session: bytes, step: str, detail: bytes) -> None:
        with self._sql.transaction() as run:
            run("INSERT OR REPLACE INTO fact VALUES (?, ?)", (step, detail))
            run("UPDATE fact SET content = ? WHERE name = ?", (b"open", "gate"))

    patch.setattr(ReportStore, "claim", claim)
    patch.setattr(ReportStore, "set_gate", lambda self, open: None)


@pytest.mark.parametrize(
    "plant", [acknowledged_before_the_disk, noise_drawn_again, report_added_twice, set_signed_twice]
)
def test_planted_faults_are_found_and_replayed(plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seed = next(seed for seed in range(1000) if _wrong(seed))
    assert _wrong(seed) == _wrong(seed)


def _wrong(seed: int) -> str:
    """What is wrong with a run; empty: nothing."""
    try:
        run(seed)
    except Wrong as error:
        return str(error)
    return ""
