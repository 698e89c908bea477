"""Client of the aggregators of a window: users send reports, the operator sends orders.

Whatever breaks on the way is sent again, the same bytes, until it is answered or patience is over.
"""

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from train_distributed.flower.aggregator_server import ORDER, REPORT
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
from train_distributed.secure_sum.errors import BadSignature
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.reports import check_acknowledgement
from train_distributed.secure_sum.window import Window

SECONDS = 60.0  # for one answer
PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0)  # before it is tried again; the last one from then on
AT_ONCE = 256  # requests on the way to one aggregator
Address = tuple[str, int]
T = TypeVar("T")


class Aggregators:
    """Lines to all aggregators of a window, made when they are needed."""

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
            addresses: aggregator -> where it listens.
            tls: what their certificates are checked with, if they have some.
            patience: seconds after which an aggregator that is gone is an error.
        """
        self._window, self._addresses, self._tls = window, dict(addresses), tls
        self._patience = patience
        self._lines: dict[int, socket.socket] = {}

    def __enter__(self) -> "Aggregators":
        return self

    def __exit__(self, *error: object) -> None:
        for aggregator in list(self._lines):
            self._drop(aggregator)

    def connect(self) -> None:
        """Has an answer of each, before anything is drawn that would be lost if they were gone.

        Raises:
            ConnectionError: an aggregator is gone for too long.
            ValueError: it takes no reports any more, or not yet.
        """
        for aggregator in sorted(self._window.servers):
            (answer,) = self._asked(aggregator, [REPORT])  # which is none, and refused
            if answer.startswith(SHUT):
                raise ValueError(f"{self._call(aggregator)} refuses: {safe(answer[1:])}")

    def report(self, reports: Mapping[int, Mapping[int, bytes]]) -> dict[int, str]:
        """Delivers reports to all aggregators.

        Args:
            reports: user -> aggregator -> message.

        Returns:
            User -> why an aggregator refuses its report; all others are in any sum that is opened.

        Raises:
            ConnectionError: an aggregator is gone for too long.
        """
        last = self._window.last
        refused, receipts = self.seeds(reports)
        users = [user for user in reports if user not in refused]
        requests = [REPORT + reports[user][last] + receipts[user] for user in users]
        for user, answer in zip(users, self._asked(last, requests), strict=True):
            self._held(last, user, reports[user][last], answer, refused)
        return refused

    def seeds(
        self, reports: Mapping[int, Mapping[int, bytes]]
    ) -> tuple[dict[int, str], dict[int, bytes]]:
        """Delivers the seeds of reports alone, which counts for nothing yet.

        Returns:
            User -> why an aggregator refuses it; user -> the receipts of all others'.
        """
        refused: dict[int, str] = {}
        receipts = dict.fromkeys(reports, b"")
        for aggregator in sorted(set(self._window.servers) - {self._window.last}):
            users = [user for user in reports if user not in refused]
            answers = self._asked(
                aggregator, [REPORT + reports[user][aggregator] for user in users]
            )
            for user, answer in zip(users, answers, strict=True):
                message = reports[user][aggregator]
                receipts[user] += self._held(aggregator, user, message, answer, refused)
        return refused, receipts

    def _held(
        self, aggregator: int, user: int, message: bytes, answer: bytes, refused: dict[int, str]
    ) -> bytes:
        """The receipt in an answer, or why there is none, written down for this user."""
        if answer[:1] != DONE:
            refused[user] = f"{self._call(aggregator)}: {safe(answer[1:])}"
            return b""
        try:
            return check_acknowledgement(self._window, aggregator, user, message, answer[1:])
        except BadSignature as error:
            refused[user] = f"{self._call(aggregator)}: {error}"
            return b""

    def status(self, keys: PrivateKeys) -> dict[int, str]:
        """Status line of each aggregator; `keys` are the operator's."""
        return {a: safe(self._ordered(a, STATUS, (), keys)) for a in sorted(self._window.servers)}

    def open(self, keys: PrivateKeys) -> Opened:
        """Closes the window and opens its sum; again, and it is the same.

        Args:
            keys: the operator's.

        Raises:
            ValueError: an aggregator refuses, as where there are fewer reports than the minimum.
            ConnectionError: an aggregator is gone for too long.
        """
        *first, last = sorted(self._window.servers)
        commits = {last: self._ordered(last, COMMIT, (), keys)}
        for aggregator in first:
            commits[aggregator] = self._ordered(aggregator, COMMIT, [commits[last]], keys)
        signed = list(commits.values())
        openings = [self._ordered(aggregator, OPEN, signed, keys) for aggregator in (*first, last)]
        return combine(self._window, commits[last], openings)

    def _ordered(
        self, aggregator: int, what: bytes, commits: Sequence[bytes], keys: PrivateKeys
    ) -> bytes:
        (answer,) = self._asked(
            aggregator, [ORDER + write_order(self._window, what, commits, keys)]
        )
        if answer[:1] != DONE:
            raise ValueError(f"{self._call(aggregator)} refuses: {safe(answer[1:])}")
        return answer[1:]

    def _asked(self, aggregator: int, requests: list[bytes]) -> list[bytes]:
        """The answers, whatever happens on the way."""
        answers: list[bytes] = []
        while len(answers) < len(requests):
            part = requests[len(answers) : len(answers) + AT_ONCE]
            answers += self._patiently(aggregator, lambda part=part: self._ask(aggregator, part))
        return answers

    def _patiently(self, aggregator: int, work: Callable[[], T]) -> T:
        start, tries = time.monotonic(), 0
        while True:
            try:
                return work()
            except OSError as error:
                self._drop(aggregator)
                pause = PAUSES[min(tries, len(PAUSES) - 1)]
                if time.monotonic() + pause > start + self._patience:
                    host, port = self._addresses[aggregator]
                    raise ConnectionError(
                        f"{self._call(aggregator)} at {host}:{port} must answer: {error}"
                    ) from error
                time.sleep(pause)
                tries += 1

    def _ask(self, aggregator: int, requests: Sequence[bytes]) -> list[bytes]:
        line = self._line(aggregator)
        line.sendall(b"".join(frames.LENGTH.pack(len(each)) + each for each in requests))
        largest = answer_bytes(self._window)
        return [frames.receive(line, largest) or b"" for _ in requests]

    def _line(self, aggregator: int) -> socket.socket:
        if aggregator not in self._lines:
            line = socket.create_connection(self._addresses[aggregator], SECONDS)
            if self._tls is not None:
                line = self._tls.wrap_socket(line, server_hostname=self._addresses[aggregator][0])
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._lines[aggregator] = line
        return self._lines[aggregator]

    def _drop(self, aggregator: int) -> None:
        if aggregator in self._lines:
            with contextlib.suppress(OSError):
                self._lines.pop(aggregator).close()

    def _call(self, aggregator: int) -> str:
        return f"aggregator {aggregator - FIRST_SERVER}"
