"""An operator killed in any round of the shares protocols, started again: the exact sum."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from train_distributed.flower import coordinator as coordination
from train_distributed.flower import portions
from train_distributed.flower.coordinator import coordinate
from train_distributed.flower.progress import Log
from train_distributed.flower.record import Record
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.secure_sum.parties import FIRST_SERVER


class Killed(BaseException):
    """Like the end of the process: nobody catches it."""


def _operate(trial: Any, state: Path):
    nonce, keys, journal = (
        trial.session.nonce,
        trial.keys[FIRST_SERVER],
        DurableJournal(state / "j"),
    )
    with Record(state) as record:
        return coordinate(trial.federation, nonce, keys, journal, trial, Log(), record=record)


def _kill_after(trial: Any, answers: int) -> Callable[[], int]:
    """The operator dies when it has had so many answers; returns how many are left."""
    left = [answers]
    plain = trial.ask_each

    def ask_each(requests: Any, seconds: float | None = None):
        for answer in plain(requests, seconds):
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            yield answer

    trial.ask_each = ask_each
    return lambda: left[0]


@pytest.mark.parametrize(
    ("protocol", "servers", "lost"),
    [
        ("shares", 3, False),
        *(("shares-replicated", s, lost) for s in (3, 4) for lost in (False, True)),
    ],
)
@pytest.mark.parametrize("batch", [1, 2**25], ids=["a round per user", "one round"])
def test_killed_after_any_answer_it_opens_the_same_session(
    protocol: str,
    servers: int,
    lost: bool,
    batch: int,
    make_trial: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(portions, "BATCH_BYTES", batch)
    monkeypatch.setattr(coordination, "END_SECONDS", 0.0)
    for answers in range(0, 200, 5):
        trial, state = make_trial(protocol, servers), tmp_path / str(answers)
        if lost:
            del trial.endpoints[21]
        plain, left = trial.ask_each, _kill_after(trial, answers)
        try:
            opened = _operate(trial, state)
        except Killed:
            trial.ask_each = plain
            opened = _operate(trial, state)
        assert opened.users == frozenset(range(5))
        assert np.array_equal(opened.total, trial.vectors.sum(0))
        if left():
            break
    else:
        raise AssertionError("a session must need fewer answers")
