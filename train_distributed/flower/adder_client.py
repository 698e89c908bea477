"""Who talks to the adders of a window: users with reports, the operator with orders.

Whatever breaks on the way is sent again, the same bytes, until it is answered or patience is over.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from train_distributed.flower.adder_server import ORDER, REPORT
from train_distributed.flower.escape import safe
from train_distributed.flower.transport import frames
from train_distributed.secure_sum.aggregator import (
    COMMIT,
    DONE,
    OPEN,
    SHUT,
    STATUS,
    answer_bytes,
    write_order,
)
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.window import Window

SECONDS = 60.0  # for one answer
PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0)  # before it is tried again; the last one from then on
AT_ONCE = 256  # requests on the way to one adder
Address = tuple[str, int]
T = TypeVar("T")


class Adders:
    """Lines to all adders of a window, made when they are needed."""

    def __init__(
        self,
        window: Window,
        addresses: Mapping[int, Address],
        tls: ssl.SSLContext | None = None,
        patience: float = 600.0,
    ) -> None:
        """Connects to nobody yet.

        Args:
            window: what was agreed.
            addresses: adder -> where it listens.
            tls: what their certificates are checked with, if they have some.
            patience: seconds after which an adder that is gone is an error.
        """
        self._window, self._addresses, self._tls = window, dict(addresses), tls
        self._patience = patience
        self._lines: dict[int, socket.socket] = {}

    def __enter__(self) -> "Adders":
        return self

    def __exit__(self, *error: object) -> None:
        for adder in list(self._lines):
            self._drop(adder)

    def connect(self) -> None:
        """Has an answer of each, before anything is drawn that would be lost if they were gone.

        Raises:
            ConnectionError: an adder is gone for too long.
            ValueError: it takes no reports any more, or not yet.
        """
        for adder in sorted(self._window.servers):
            (answer,) = self._asked(adder, [REPORT])  # which is none, and refused
            if answer.startswith(SHUT):
                raise ValueError(f"{self._call(adder)} refuses: {safe(answer[1:])}")

    def report(self, reports: Mapping[int, Mapping[int, bytes]]) -> dict[int, str]:
        """Delivers reports to all adders.

        Args:
            reports: user -> adder -> message.

        Returns:
            User -> why an adder refuses its report; all others are in the sum, if one is opened.

        Raises:
            ConnectionError: an adder is gone for too long.
        """
        last = self._window.last
        refused, receipts = self.seeds(reports)
        users = [user for user in reports if user not in refused]
        requests = [REPORT + reports[user][last] + receipts[user] for user in users]
        for user, answer in zip(users, self._asked(last, requests), strict=True):
            if answer[:1] != DONE:
                refused[user] = f"{self._call(last)}: {safe(answer[1:])}"
        return refused

    def seeds(
        self, reports: Mapping[int, Mapping[int, bytes]]
    ) -> tuple[dict[int, str], dict[int, bytes]]:
        """Delivers the seeds of reports alone, which counts for nothing yet.

        Returns:
            User -> why an adder refuses it; user -> the receipts of all others'.
        """
        refused: dict[int, str] = {}
        receipts = dict.fromkeys(reports, b"")
        for adder in sorted(set(self._window.servers) - {self._window.last}):
            users = [user for user in reports if user not in refused]
            answers = self._asked(adder, [REPORT + reports[user][adder] for user in users])
            for user, answer in zip(users, answers, strict=True):
                if answer[:1] == DONE:
                    receipts[user] += answer[1:]
                else:
                    refused[user] = f"{self._call(adder)}: {safe(answer[1:])}"
        return refused, receipts

    def status(self, keys: PrivateKeys) -> dict[int, str]:
        """What each adder says of itself; `keys` are the operator's."""
        return {a: safe(self._ordered(a, STATUS, (), keys)) for a in sorted(self._window.servers)}

    def open(self, keys: PrivateKeys) -> Opened:
        """Closes the window and opens its sum; again, and it is the same.

        Args:
            keys: the operator's.

        Raises:
            ValueError: an adder refuses, as where there are fewer reports than the minimum.
            ConnectionError: an adder is gone for too long.
        """
        *first, last = sorted(self._window.servers)
        commits = {last: self._ordered(last, COMMIT, (), keys)}
        for adder in first:
            commits[adder] = self._ordered(adder, COMMIT, [commits[last]], keys)
        signed = list(commits.values())
        openings = [self._ordered(adder, OPEN, signed, keys) for adder in (*first, last)]
        return combine(self._window, commits[last], openings)

    def _ordered(
        self, adder: int, what: bytes, commits: Sequence[bytes], keys: PrivateKeys
    ) -> bytes:
        (answer,) = self._asked(adder, [ORDER + write_order(self._window, what, commits, keys)])
        if answer[:1] != DONE:
            raise ValueError(f"{self._call(adder)} refuses: {safe(answer[1:])}")
        return answer[1:]

    def _asked(self, adder: int, requests: list[bytes]) -> list[bytes]:
        """The answers, whatever happens on the way."""
        answers: list[bytes] = []
        while len(answers) < len(requests):
            part = requests[len(answers) : len(answers) + AT_ONCE]
            answers += self._patiently(adder, lambda part=part: self._ask(adder, part))
        return answers

    def _patiently(self, adder: int, work: Callable[[], T]) -> T:
        start, tries = time.monotonic(), 0
        while True:
            try:
                return work()
            except OSError as error:
                self._drop(adder)
                pause = PAUSES[min(tries, len(PAUSES) - 1)]
                if time.monotonic() + pause > start + self._patience:
                    host, port = self._addresses[adder]
                    raise ConnectionError(
                        f"{self._call(adder)} at {host}:{port} must answer: {error}"
                    ) from error
                time.sleep(pause)
                tries += 1

    def _ask(self, adder: int, requests: Sequence[bytes]) -> list[bytes]:
        line = self._line(adder)
        line.sendall(b"".join(frames.LENGTH.pack(len(each)) + each for each in requests))
        largest = answer_bytes(self._window)
        return [frames.receive(line, largest) or b"" for _ in requests]

    def _line(self, adder: int) -> socket.socket:
        if adder not in self._lines:
            line = socket.create_connection(self._addresses[adder], SECONDS)
            if self._tls is not None:
                line = self._tls.wrap_socket(line, server_hostname=self._addresses[adder][0])
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines[adder] = line
        return self._lines[adder]

    def _drop(self, adder: int) -> None:
        if adder in self._lines:
            with contextlib.suppress(OSError):
                self._lines.pop(adder).close()

    def _call(self, adder: int) -> str:
        return f"adder {adder - FIRST_SERVER}"
