"""`federation status`: what a folder's files say, for people."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from train_distributed.commands.federation.setup import INVITATION
from train_distributed.federation.documents.certificates import AGREED, valid_until
from train_distributed.federation.documents.document import read_as, shown
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.invitation import FEDERATION
from train_distributed.federation.documents.run_log import LOG, RUNS, STATUS
from train_distributed.federation.documents.sessions import read_ledger
from train_distributed.federation.documents.window_file import kept_windows

LAST_LINES = 5


def lines_of(folder: Path) -> Iterator[str]:
    """Line by line: the federation or federations, the last run, the end of its log.

    Raises:
        ValueError: no folder of `init` or `join`, or a file in it that was changed.
    """
    if (folder / FEDERATION).exists():
        yield from _of_operator(folder)
    else:
        yield from _of_party(folder)
    runs = sorted((folder / RUNS).glob("*/"))
    if not runs:
        yield "never started"
        return
    yield f"last run: {runs[-1]}"
    if (runs[-1] / STATUS).exists():
        yield from _flat(read_as(runs[-1] / STATUS, dict[str, Any]))
    if (runs[-1] / LOG).exists():
        last = (runs[-1] / LOG).read_text("utf-8", "backslashreplace").splitlines()[-LAST_LINES:]
        yield from (f"log: {shown(line)}" for line in last)


def _of_operator(folder: Path) -> Iterator[str]:
    federation = Federation.load(folder / FEDERATION)
    yield f"federation {federation.digest.hex()}, {federation.protocol}"
    yield f"{federation.enrolled} users, sums of {federation.minimum} and more"
    if federation.certificates:
        agreed = folder / INVITATION / AGREED
        yield f"certificates valid until {valid_until(agreed):%Y-%m-%d}"
    else:
        yield "plain HTTP behind a proxy that has TLS"
    if federation.protocol == "secagg":
        yield federation.deadlines.words
    for window, opened in kept_windows(folder):
        times = [datetime.fromtimestamp(t, UTC) for t in (window.opens, window.closes)]
        yield (
            f"window {window.digest.hex()[:16]}, {times[0]:%Y-%m-%d %H:%M} to "
            f"{times[1]:%Y-%m-%d %H:%M} UTC: {window.state(time.time(), closed=opened)}"
        )


def _of_party(folder: Path) -> Iterator[str]:
    ledger = read_ledger(folder)
    for entry in ledger:
        yield f"federation {entry.digest}: {entry.called}"
        if entry.user:
            yield (
                f"sessions: {entry.used} used, {entry.sessions - entry.used} left; "
                f"epsilon {entry.spent:g} of {entry.sessions * entry.epsilon:g}"
            )
    spent = sum(entry.spent for entry in ledger)
    yield f"epsilon of all federations of this folder: {spent:g}"


def _flat(status: dict[str, Any]) -> Iterator[str]:
    for name, value in status.items():
        if isinstance(value, dict):
            yield from (f"{shown(name)}: {shown(k)}: {shown(str(v))}" for k, v in value.items())
        elif isinstance(value, list):
            yield from (f"{shown(name)}: {shown(str(each))}" for each in value)
        else:
            yield f"{shown(name)}: {shown(str(value))}"
