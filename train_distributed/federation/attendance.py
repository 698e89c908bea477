"""A party at the operator's service: fetches questions by long polls, and brings its answers.

An answer is sent again, the same bytes, until the service has it. An operator that comes back
within the party's patience finds the endpoint as it left it.
"""

import base64
import fcntl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx

from pretrain.cli.waiting import to_terminal
from train_distributed.federation.aggregator_limits import OCTETS, SUMMARY
from train_distributed.federation.documents.certificates import REMEDY, trust
from train_distributed.federation.documents.document import safe
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.window_file import split_address
from train_distributed.federation.endpoint import Endpoint
from train_distributed.federation.orders import (
    NO_QUESTION,
    POLL_SECONDS,
    QUESTION_BYTES,
    REFUSED,
    Poll,
    name_of_question,
    write_poll,
)
from train_distributed.federation.proxies import client
from train_distributed.secure_sum.keys import PrivateKeys

MOST_SAID = 100  # refusals that are shown
RETRY_SECONDS = 2.0  # before the operator is tried again
ANSWER_SECONDS = POLL_SECONDS + 10.0  # that an operator has to answer a poll
SEND_SECONDS = 120.0  # that an answer has to go out
DELIVER_SECONDS = 10.0  # that the last answer has to arrive, once the operator is gone
LATER = {408, 429, 500, 502, 503, 504}  # statuses after which the same is sent again
CONNECTED = "connected"
_TLS = {  # words of OpenSSL -> ours
    "has expired": "the operator's certificate has expired, or this machine's clock is ahead: "
    + REMEDY,
    "not yet valid": "the operator's certificate is not valid yet: this machine's clock is behind",
    "mismatch": "the operator's certificate is not for this address: `init --hosts` names all",
}
_OTHER = "the operator's certificate is not the one that was agreed on: another operator"
_REFUSALS = {
    401: "this party's key is not registered with the operator: it has another invitation, or keys",
    404: "the operator runs another federation",
    413: "the operator refuses an answer as too long: it runs another federation",
}


class Away(ConnectionError):
    """The operator cannot be reached; the message says why."""


class Foreign(ValueError):
    """Not a question of the operator's service."""


@dataclass(frozen=True, kw_only=True)
class Attendance:
    """Endpoint of a party, and the operator's service that asks it."""

    endpoint: Endpoint
    federation: Federation
    party: int
    keys: PrivateKeys
    address: str  # host:port of the operator; with Flower, unix: and where its node asks
    certificates: Path | None  # that are trusted; None: the system's authorities
    patience: float = 3600.0  # seconds since the last contact, until the party gives up
    say: Callable[[str], None] = to_terminal


# brings a poll; status and content of the operator's answer to it. Raises Away, Foreign
Line = Callable[[Poll], tuple[int, bytes]]


def attend(attendance: Attendance, line: AbstractContextManager[Line] | None = None) -> int:
    """Answers until all agreed sessions are over, or the operator is gone for too long.

    Args:
        attendance: of the party.
        line: to the operator; that to its service if left out.

    Returns:
        0: all agreed sessions are over. 1: no contact for `patience` seconds.

    Raises:
        ValueError: a file that holds no certificate, or an address that does not fit the line.
    """
    with line or _to_service(attendance) as brought:
        return _Visit(attendance, brought).run()


@contextmanager
def _to_service(attendance: Attendance) -> Iterator[Line]:
    host, port = split_address(attendance.address)
    tls = trust(attendance.certificates)
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    timeout = httpx.Timeout(ANSWER_SECONDS, write=SEND_SECONDS)
    headers = {"content-type": OCTETS, "accept-encoding": "identity"}
    settings = {"base_url": f"https://{at}", "timeout": timeout, "headers": headers}
    http, _ = client(host, tls, **settings)
    with http:
        yield partial(_posted, attendance, http)


def _posted(attendance: Attendance, http: httpx.Client, poll: Poll) -> tuple[int, bytes]:
    federation, most = attendance.federation, QUESTION_BYTES + attendance.endpoint.largest_frame
    body, shown = write_poll(federation, poll, attendance.keys)
    path, got = f"/relay/{federation.digest.hex()}", bytearray()
    headers = {SUMMARY: base64.b64encode(shown).decode()}
    try:
        with http.stream("POST", path, content=body, headers=headers) as response:
            for piece in response.iter_raw():
                got += piece
                if len(got) > most:
                    raise Foreign(f"question must be <= {most - QUESTION_BYTES} bytes, got more")
            return response.status_code, bytes(got)
    except httpx.TransportError as error:
        raise Away(_cause(error)) from error


class _Visit:
    """Polls of one party, one after another."""

    def __init__(self, attendance: Attendance, line: Line) -> None:
        self._at, self._line = attendance, line
        self._endpoint = attendance.endpoint
        self._next = Poll(attendance.party, NO_QUESTION, b"")
        self._last = time.monotonic()  # contact with the operator
        self._connected = False
        self._said, self._refusals = "", set[bytes]()

    def run(self) -> int:
        """Answers the operator until all sessions are over (0) or it is gone for too long (1)."""
        while not self._lost():
            try:
                pause = self._taken(*self._line(self._next))
            except Away as error:
                self._ends(str(error))
                pause = RETRY_SECONDS
            except Foreign as error:
                self._ends(f"refused what the operator sent: {error}")
                pause = RETRY_SECONDS
            if self._endpoint.over and not self._next.answer:
                return 0
            time.sleep(pause)
        if self._endpoint.over:
            return 0
        print(f"error: operator at {self._at.address} is gone", file=sys.stderr)
        return 1

    def _taken(self, status: int, content: bytes) -> float:
        """Does what the service has answered; seconds to wait before the next poll."""
        if status not in (200, 204):
            words = f"the operator refuses: {status}"
            self._ends(_REFUSALS.get(status, words))
            return RETRY_SECONDS / 2 if status in LATER else RETRY_SECONDS
        if status == 204:
            quick = time.monotonic() - self._last < 1.0  # the service is ending
            self._made()
            self._next = Poll(self._at.party, NO_QUESTION, b"")
            return 1.0 if quick and not self._endpoint.over else 0.0
        name, question = content[:QUESTION_BYTES], content[QUESTION_BYTES:]
        if name != name_of_question(question):
            raise Foreign("question must have its own name, has another")
        self._made()
        answer = self._endpoint.answer(question)
        self._next = Poll(self._at.party, name, answer)
        self._refused(answer)
        self._last = time.monotonic()  # to make it may take longer than the patience
        return 0.0

    def _made(self) -> None:
        self._last, self._connected = time.monotonic(), True
        self._tell(CONNECTED)

    def _ends(self, why: str) -> None:
        """A connection that stood until now does not any more."""
        if self._connected:
            self._last = time.monotonic()
        self._connected = False
        self._tell(why)

    def _lost(self) -> bool:
        """Whether the last contact is too long ago; an open connection is contact."""
        most = self._at.patience
        if self._endpoint.over:
            most = min(most, DELIVER_SECONDS)
        return not self._connected and time.monotonic() - self._last > most

    def _tell(self, words: str) -> None:
        if words != self._said:
            self._said = words
            self._at.say(safe(words))

    def _refused(self, answer: bytes) -> None:
        """Says a refusal, once, to the party whose it is."""
        fresh = answer not in self._refusals and len(self._refusals) < MOST_SAID
        if answer[:1] == REFUSED and fresh:
            self._refusals.add(answer)
            self._at.say(f"refused what the operator asked: {safe(answer[1:])}")


@contextmanager
def alone(state: Path) -> Iterator[None]:
    """Keeps other processes of the same party out of a state directory until the block ends.

    Raises:
        ValueError: another one has it.
    """
    with (state / "running").open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{state} must be one process's, another one takes part") from error
        yield


def _cause(error: httpx.TransportError) -> str:
    text = str(error)
    if "certificate" in text.lower():
        return next((ours for theirs, ours in _TLS.items() if theirs in text.lower()), _OTHER)
    if isinstance(error, httpx.TimeoutException):
        return "the operator does not answer"
    return f"nobody listens: {text or type(error).__name__}"
