"""Client of a window's aggregators: users report, the operator orders, the leader sends jobs.

Whatever breaks on the way is sent again, the same bytes, until it is answered or patience is over;
what no patience mends is an error at once. Meanwhile it is said for whom one waits, and why.
"""

import base64
import hashlib
import math
import socket
import ssl
import time
from collections.abc import Mapping, Sequence

import httpx

from pretrain.cli.waiting import Waiting
from train_distributed.federation.aggregator_limits import OCTETS, SUMMARY
from train_distributed.federation.documents.document import safe
from train_distributed.federation.proxies import client
from train_distributed.secure_sum.aggregator import CENTRE, COMMIT, OPEN, STATUS, write_order
from train_distributed.secure_sum.errors import BadSignature, ProtocolError
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened, combine
from train_distributed.secure_sum.reports import HELPER_MESSAGE_BYTES, check_acknowledgement
from train_distributed.secure_sum.window import HELPER, LEADER, Window
from train_distributed.secure_sum.wire import summary

SECONDS = 60.0  # for one answer
PAUSES = (0.1, 0.3, 1.0, 3.0, 10.0)  # before it is tried again; the last one from then on
LOOK_SECONDS = 1.0  # between looks for what the operator publishes
MOST_ANSWER = 2**31  # bytes, of a share of the sum
MOST_WORDS = 2000  # bytes of a refusal that are read
LATER = {408, 429, 502, 503, 504}  # statuses after which the same is asked again
Address = tuple[str, int]


class Refused(ValueError):
    """An aggregator refuses; what was asked is not to be asked again as it is."""


class Aggregators:
    """Lines to the aggregators of a window, made when they are needed.

    Args:
        window: what was agreed.
        addresses: aggregator -> where it listens.
        tls: what their certificates are checked with.
        patience: seconds after which an aggregator that is gone is an error.

    Raises:
        ValueError: the environment names a proxy that is none; nothing was signed.
    """

    def __init__(
        self,
        window: Window,
        addresses: Mapping[int, Address],
        tls: ssl.SSLContext,
        patience: float = 600.0,
    ) -> None:
        self._window, self._patience = window, patience
        headers = {"content-type": OCTETS, "accept-encoding": "identity"}
        self._http, self._called = dict[int, httpx.Client](), dict[int, str]()
        for aggregator, (host, port) in addresses.items():
            at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            given = {"base_url": f"https://{at}", "timeout": SECONDS, "headers": headers}
            self._http[aggregator], through = client(host, tls, **given)
            self._called[aggregator] = f"aggregator {aggregator - LEADER} at {at}{through}"

    def __enter__(self) -> "Aggregators":
        return self

    def __exit__(self, *error: object) -> None:
        for http in self._http.values():
            http.close()

    def called(self, aggregator: int) -> str:
        """Name of an aggregator for people: its number, address, and the proxy on the way."""
        return self._called[aggregator]

    def connect(self, most: float = math.inf) -> None:
        """Has an answer of the leader, before anything is made that would be lost without it.

        Args:
            most: seconds after which an answer would be of no use.

        Raises:
            ConnectionError: it is gone for too long.
            Refused: it takes no reports any more, or not yet.
        """
        self._ask(LEADER, "GET", self._task, b"", most=most)

    def report(self, user: int, report: bytes) -> None:
        """Delivers a report.

        Raises:
            ConnectionError: the leader is gone for too long.
            Refused: it does not take the report, or somebody else has answered.
        """
        shown = summary(report[:-HELPER_MESSAGE_BYTES])
        answer = self._ask(LEADER, "POST", f"{self._task}/reports", report, shown)
        try:
            check_acknowledgement(self._window, user, report, answer)
        except BadSignature as error:
            raise Refused(f"{self.called(LEADER)}: {error}") from error

    def published(self) -> bytes:
        """The operator's order that has published a centre, unchecked; empty without one.

        Raises:
            ConnectionError: the leader is gone for too long.
        """
        return self._ask(LEADER, "GET", f"{self._task}/centre", b"")

    def await_centre(self) -> bytes:
        """Waits for the order that publishes a centre; empty if the patience or the window ends."""
        left = min(self._patience, self._window.closes - time.time())
        end, whom = time.monotonic() + left, f"the centre, published at {self.called(LEADER)}"
        with Waiting(whom, "the operator has not collected the first sum yet", most=left):
            while not (found := self.published()) and time.monotonic() < end:
                time.sleep(min(LOOK_SECONDS, max(0.0, end - time.monotonic())))
        return found

    def publish(self, centre: bytes, keys: PrivateKeys) -> None:
        """Has both aggregators take the second sum at this centre; `keys` are the operator's.

        Raises:
            Refused: another centre was published before, or the first sum is not closed.
            ConnectionError: an aggregator is gone for too long; to be published again.
        """
        for aggregator in (LEADER, HELPER):
            self._ordered(aggregator, CENTRE, "/centre", [centre], keys)

    def job(self, message: bytes) -> bytes:
        """The helper's verdicts on a job.

        Raises:
            OSError: it is gone, or refuses.
        """
        name = hashlib.sha256(message).hexdigest()[:32]
        try:
            path = f"{self._task}/aggregation_jobs/{name}"
            return self._ask(HELPER, "PUT", path, message, summary(message))
        except Refused as error:
            raise OSError(str(error)) from error

    def status(self, keys: PrivateKeys) -> dict[int, str]:
        """Status of each aggregator; `keys` are the operator's."""
        asked = {a: self._ordered(a, STATUS, "", (), keys) for a in (LEADER, HELPER)}
        return {a: "; ".join(map(safe, answer.split(b"\n"))) for a, answer in asked.items()}

    def decided(self, keys: PrivateKeys) -> int:
        """Users whose reports the leader has added or refused; `keys` are the operator's."""
        words = self._ordered(LEADER, STATUS, "", (), keys).decode().replace(",", "").split()
        return int(words[0]) + int(words[words.index("refused") - 1])

    def open(self, keys: PrivateKeys) -> Opened:
        """Closes the window and opens its sum; again, and it is the same.

        Args:
            keys: the operator's.

        Raises:
            ValueError: an aggregator refuses, as where there are fewer reports than the minimum.
            ConnectionError: an aggregator is gone for too long.
        """
        commits = list[bytes]()
        for aggregator in (LEADER, HELPER):
            commits.append(self._ordered(aggregator, COMMIT, "/collection_jobs", commits, keys))
        openings = [
            self._ordered(aggregator, OPEN, "/aggregate_shares", commits, keys)
            for aggregator in (LEADER, HELPER)
        ]
        try:
            return combine(self._window, commits[0], openings)
        except ProtocolError as error:
            raise ValueError(f"aggregators must open one sum: {error}") from error

    def _ordered(
        self, aggregator: int, what: bytes, path: str, body: Sequence[bytes], keys: PrivateKeys
    ) -> bytes:
        order = write_order(self._window, what, body, keys)
        return self._ask(aggregator, "POST", self._task + path, order, summary(order))

    @property
    def _task(self) -> str:
        return f"/tasks/{self._window.digest.hex()}"

    def _ask(
        self,
        aggregator: int,
        method: str,
        path: str,
        body: bytes,
        shown: bytes = b"",
        most: float = math.inf,
    ) -> bytes:
        """The answer, whatever happens on the way within `most` seconds and the patience.

        `shown` is the summary of what was signed.
        """
        who, patience = self.called(aggregator), max(0.0, min(self._patience, most))
        start, tries = time.monotonic(), 0
        with Waiting(who, "no answer yet", most=patience) as waiting:
            while True:
                try:
                    status, answer = self._sent(aggregator, method, path, body, shown)
                    if status < 300:
                        return answer
                    why = safe(answer)
                    if status not in LATER:
                        raise Refused(f"{who} refuses: {why}")
                except httpx.TransportError as error:
                    why = reason(error)
                    if mend := remedy(error):
                        raise ConnectionError(f"{who} must answer: {why}; {mend}") from error
                pause = PAUSES[min(tries, len(PAUSES) - 1)]
                if time.monotonic() + pause > start + patience:
                    raise ConnectionError(f"{who} must answer: {why}")
                waiting.because(why)
                time.sleep(pause)
                tries += 1

    def _sent(
        self, aggregator: int, method: str, path: str, body: bytes, shown: bytes
    ) -> tuple[int, bytes]:
        """Status and answer; of a refusal, its first words."""
        headers = {SUMMARY: base64.b64encode(shown).decode()} if shown else None
        with self._http[aggregator].stream(method, path, content=body, headers=headers) as response:
            good = response.status_code < 300
            most, answer = MOST_ANSWER if good else MOST_WORDS, bytearray()
            for piece in response.iter_raw():
                answer += piece
                if len(answer) > most:
                    break
            if good:
                return response.status_code, bytes(answer)
            try:
                problem = httpx.Response(200, content=bytes(answer)).json()
                words = f"{problem['title']}: {problem['detail']}"
            except (ValueError, KeyError, TypeError):
                words = f"status {response.status_code}"
            return response.status_code, words.encode(errors="replace")


def reason(error: Exception) -> str:
    """Why there is no answer, in words, and what may mend it."""
    words = str(error) or type(error).__name__
    if isinstance(error, httpx.ReadError | httpx.RemoteProtocolError):
        words += "; it may speak another protocol"
    return words


def remedy(error: BaseException) -> str | None:
    """Remedy of an error that no further try mends; None for all others."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate must be valid, for this address, and agreed on or known"
        if isinstance(cause, ssl.SSLError) and cause.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS, which was agreed on"
        if isinstance(cause, socket.gaierror) and cause.errno == socket.EAI_NONAME:
            return "no host has this name, or no name server is reached"
        cause = cause.__cause__ or cause.__context__
    return None
