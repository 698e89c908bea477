"""What happens when a process is killed, stopped or started twice, at every stage of a session.

python kill_matrix.py OUT.md runs everything and writes the table; `test_kills.py` runs the same.
"""

import importlib.util
import platform
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
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


def _at(field: Any, stage: str) -> None:
    def reached() -> bool:
        status = field.status()
        return status.get("stage") == stage and (stage != "gather" or "present" in status)

    field.wait_for(reached)


def kill_operator(field: Any, operator: Any, nodes: dict[str, Any]) -> Any:
    """kill -9, and started again at once."""
    operator.kill()
    operator.wait()
    return field.operator()


def kill_node(field: Any, operator: Any, nodes: dict[str, Any]) -> Any:
    """kill -9 of user 3."""
    nodes["user3"].kill()
    return operator


def restart_node(field: Any, operator: Any, nodes: dict[str, Any]) -> Any:
    """kill -9 of user 3, and started again at once."""
    nodes["user3"].kill()
    nodes["user3"].wait()
    field.node("user3")
    return operator


def _pause(process: Any) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(TIMEOUT / 2)
    process.send_signal(signal.SIGCONT)


def stop_node(field: Any, operator: Any, nodes: dict[str, Any]) -> Any:
    """SIGSTOP of user 3 for half a time-out."""
    _pause(nodes["user3"])
    return operator


def stop_operator(field: Any, operator: Any, nodes: dict[str, Any]) -> Any:
    """SIGSTOP of the operator for half a time-out."""
    _pause(operator)
    return operator


BLOWS: dict[str, Callable[..., Any]] = {
    "operator killed and restarted": kill_operator,
    "user 3 killed": kill_node,
    "user 3 killed and restarted": restart_node,
    "user 3 stopped for half a time-out": stop_node,
    "operator stopped for half a time-out": stop_operator,
}


def _finish(field: Any, operator: Any, start: float) -> Outcome:
    code = operator.wait(300)
    seconds = time.monotonic() - start
    if code == 0:
        users = field.opened()
        return Outcome(f"exact sum of {len(users)} users", seconds, users)
    assert code == 2, field.logs()
    assert not (field.folder / "opened.npz").exists()
    words = field.status()["outcome"].partition(";")[0]
    return Outcome("refused: " + re.sub(r"\s+", " ", words)[:120], seconds, None)


def struck(field: Any, stage: str, blow: Callable[..., Any]) -> Outcome:
    """One session with one blow."""
    nodes = {party: field.node(party) for party in field.parties}
    start = time.monotonic()
    operator = field.operator()
    _at(field, stage)
    return _finish(field, blow(field, operator, nodes), start)


def copies(field: Any) -> Outcome:
    """Two copies of user 3's folder, each with a journal of its own."""
    for party in field.parties:
        field.node(party)
    field.node("user3", journals="copy")
    start = time.monotonic()
    return _finish(field, field.operator(), start)


def same_key(field: Any) -> Outcome:
    """Two processes of user 3, in the same folder."""
    for party in (*field.parties, "user3"):
        field.node(party)
    start = time.monotonic()
    return _finish(field, field.operator(), start)


def older(field: Any) -> Outcome:
    """Nodes that have waited for longer than the time-out."""
    for party in field.parties:
        field.node(party)
    time.sleep(1.5 * TIMEOUT)
    start = time.monotonic()
    return _finish(field, field.operator(), start)


def younger(field: Any) -> Outcome:
    """Nodes that are started when half of the time-out has passed."""
    start = time.monotonic()
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    time.sleep(TIMEOUT / 2)
    for party in field.parties:
        field.node(party)
    return _finish(field, operator, start)


OTHERS: dict[str, Callable[[Any], Outcome]] = {
    "two copies of user 3's folder": copies,
    "user 3 started twice": same_key,
    "users older than the time-out": older,
    "users younger than the time-out": younger,
}


def _every():
    """(stage, what, outcome) of all of it."""
    for what, blow in BLOWS.items():
        for stage in STAGES:
            yield stage, what, lambda f, s=stage, b=blow: struck(f, s, b)
    for what, scene in OTHERS.items():
        yield "any", what, scene


def main() -> None:
    here = Path(__file__).parent
    spec = importlib.util.spec_from_file_location("conftest", here / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    conftest = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conftest)
    rows: list[str] = []
    for stage, what, scene in _every():
        with tempfile.TemporaryDirectory() as name:
            field = conftest.Field(Path(name), 5, TIMEOUT)
            try:
                outcome = scene(field)
                words, seconds = outcome.words, f"{outcome.seconds:.0f}"
            except AssertionError as error:
                words, seconds = f"FAILED: {str(error)[:200]!r}", "-"
            left = field.end()
        words += f"; left running: {left}" if left else ""
        rows.append(f"| {what} | {stage} | {words} | {seconds} |")
        print(rows[-1], flush=True)
        Path(sys.argv[1]).write_text(_HEAD + "\n".join(rows) + "\n")


_HEAD = f"""# Killed, stopped, started twice

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
