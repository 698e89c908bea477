"""What happens when a process is killed, stopped or started twice, at every stage of a session.

python kill_matrix.py OUT.md runs everything and writes the table; `test_kills.py` runs the same.
"""

import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

TIMEOUT = 16.0
STAGES = [
    "gather",
    "start",
    "deliver neighbours",
    "deliver inbox",
    "deliver survivors",
    "deliver unmask",
]


@dataclass(frozen=True)
class Outcome:
    """How a session ended."""

    words: str
    seconds: float
    users: list[int] | None  # in the sum, which was exact; None: refused


def kill(field: Any, party: str, *, restarted: bool = False) -> None:
    process = field.latest[party]
    process.kill()
    process.wait()
    if restarted:
        field.node(party)


def pause(field: Any, party: str) -> None:
    process = field.latest[party]
    process.send_signal(signal.SIGSTOP)
    time.sleep(TIMEOUT / 2)
    process.send_signal(signal.SIGCONT)


BLOWS: dict[str, Callable[[Any], None]] = {
    "operator killed and restarted": lambda field: kill(field, "operator", restarted=True),
    "user 3 killed": lambda field: kill(field, "user3"),
    "user 3 killed and restarted": lambda field: kill(field, "user3", restarted=True),
    "user 3 stopped for half a time-out": lambda field: pause(field, "user3"),
    "operator stopped for half a time-out": lambda field: pause(field, "operator"),
}


def finish(field: Any, start: float) -> Outcome:
    code = field.latest["operator"].wait(300)
    seconds = time.monotonic() - start
    if code == 0:
        users = field.opened()
        return Outcome(f"exact sum of {len(users)} users", seconds, users)
    assert code == 2, field.logs()
    assert not (field.folder / "opened.npz").exists()
    words = field.status()["outcome"].partition(";")[0]
    return Outcome("refused: " + re.sub(r"\s+", " ", words)[:120], seconds, None)


def struck(field: Any, stage: str, blow: Callable[[Any], None]) -> Outcome:
    """One session with one blow."""

    def reached() -> bool:
        status = field.status()
        return status.get("stage") == stage and (stage != "gather" or "present" in status)

    field.nodes()
    start = time.monotonic()
    field.node("operator")
    field.wait_for(reached)
    blow(field)
    return finish(field, start)


def attended(field: Any, *more: Any, wait: float = 0.0) -> Outcome:
    """A session whose users are there before it, `wait` seconds ago."""
    field.nodes()
    for options in more:
        field.node("user3", **options)
    time.sleep(wait)
    start = time.monotonic()
    field.node("operator")
    return finish(field, start)


def younger(field: Any) -> Outcome:
    """Nodes that are started when half of the time-out has passed."""
    start = time.monotonic()
    field.node("operator")
    field.wait_for((field.folder / "ready").exists)
    time.sleep(TIMEOUT / 2)
    field.nodes()
    return finish(field, start)


OTHERS: dict[str, Callable[[Any], Outcome]] = {
    "two copies of user 3's folder": lambda field: attended(field, {"journals": "copy"}),
    "user 3 started twice": lambda field: attended(field, {}),
    "users older than the time-out": lambda field: attended(field, wait=1.5 * TIMEOUT),
    "users younger than the time-out": younger,
}


def main() -> None:
    from tests.train_distributed.federation.conftest import Field

    every = [
        (stage, what, partial(struck, stage=stage, blow=blow))
        for what, blow in BLOWS.items()
        for stage in STAGES
    ]
    rows: list[str] = []
    for stage, what, scene in [*every, *(("any", *other) for other in OTHERS.items())]:
        with tempfile.TemporaryDirectory() as name:
            field = Field(Path(name), 5, TIMEOUT)
            try:
                outcome = scene(field)
                words, seconds = outcome.words, f"{outcome.seconds:.0f}"
            except AssertionError as error:
                words, seconds = f"FAILED: {str(error)[:200]!r}", "-"
            left = field.end()
        words += f"; left running: {left}" if left else ""
        rows.append(f"| {what} | {stage} | {words} | {seconds} |")
        print(rows[-1], flush=True)
        Path(sys.argv[1]).write_text(HEAD + "\n".join(rows) + "\n")


HEAD = f"""# Killed, stopped, started twice

Five users, real processes and TLS on loopback, one session agreed, time-out {TIMEOUT:g} s, on
{platform.machine()} with Python {platform.python_version()}. Written by
`python tests/train_distributed/federation/kill_matrix.py results/secure_sum/kill-matrix.md`.
A sum is compared with the plain sum of the same users, bit for bit; after each session no process
was left. Seconds include the time-outs waited for and the start of every process.

| what | when asking | outcome | seconds |
|---|---|---|---|
"""

if __name__ == "__main__":
    main()
