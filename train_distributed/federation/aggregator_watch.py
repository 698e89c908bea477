"""Metrics of an aggregator for Prometheus, and its log in lines of JSON.

Neither grows with what strangers send. Labels are names of the code, never of users or addresses;
counts of reports are those that an operator's STATUS shows. A place of the code writes a line at
most once in a while, with the number of those it left out, and the file of them is rotated.
"""

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

LOG = logging.getLogger("blind_averaging.aggregator")
EVENTS = "events.jsonl"
LINE_SECONDS = 60.0  # between two lines of one place of the code
LOG_BYTES, LOG_FILES = 2**20, 5
MOST_WORDS = 500  # characters of a field
COUNT_SECONDS = 5.0  # for which reports are not counted again
STATES = ("waiting", "added", "refused")  # as ReportStore numbers them


class Watch:
    """Metrics of one process of an aggregator."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"aggregator_{name}", words, labels, registry=registry)

        self.reports = counter("reports_received", "reports, by acknowledged or why not", "answer")
        self.jobs = counter("jobs", "jobs with the helper, by their end", "answer")
        self.received = counter("received_bytes", "bytes that have come, without those of TLS")
        self.responses = counter("responses", "responses sent, whatever was asked")
        self.closed = counter("closed_connections", "connections closed by us", "why")
        self.database_errors = counter("database_errors", "requests and jobs that it failed")
        seconds = (0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
        self.request_seconds = Histogram(
            "aggregator_request_seconds",
            "seconds of requests to the task, by what was asked",
            ("request", "status"),
            registry=registry,
            buckets=seconds,
        )
        self.job_seconds = Histogram(
            "aggregator_job_seconds",
            "seconds of a job, the helper's answer included",
            registry=registry,
            buckets=seconds,
        )
        self.connections = Gauge("aggregator_connections", "open connections", registry=registry)

    def count_reports(self, ask: Callable[[], dict[int, int]]) -> None:
        """Has scrapes show how many reports there are in each state, asked of the database."""
        self.registry.register(_Reports(ask))

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serves the metrics to the operator's Prometheus; returns what ends it.

        Raises:
            OSError: the address is taken.
        """
        server, thread = start_http_server(port, host, self.registry)

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end


class _Reports(Collector):
    def __init__(self, ask: Callable[[], dict[int, int]]) -> None:
        self._ask, self._counts, self._until = ask, dict[int, int](), 0.0

    def collect(self) -> Iterator[GaugeMetricFamily]:
        if time.monotonic() >= self._until:
            try:
                self._counts = self._ask()
            except OSError:
                self._counts = {}  # no figure rather than an old one
            self._until = time.monotonic() + COUNT_SECONDS
        family = GaugeMetricFamily(
            "aggregator_reports", "reports in the database, by their state", labels=["state"]
        )
        for state, count in self._counts.items():
            family.add_metric([STATES[state]], count)
        yield family


class Seldom(logging.Filter):
    """Lets each place of the code write a line once in `seconds`, and counts what it leaves out."""

    def __init__(
        self, seconds: float = LINE_SECONDS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._seconds, self._clock = seconds, clock
        self._places: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        place, now = (record.pathname, record.lineno), self._clock()
        until, left_out = self._places.get(place, (now, 0))
        if now < until:
            self._places[place] = until, left_out + 1
            return False
        self._places[place] = now + self._seconds, 0
        record.left_out = left_out
        return True


class JsonLines(logging.Formatter):
    """One JSON object a record: time, level, event, the fields of `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        fields: dict[str, object] = dict(getattr(record, "fields", {}))
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)[-2000:]
        if left_out := getattr(record, "left_out", 0):
            fields["left_out"] = left_out
        at = f"{datetime.fromtimestamp(record.created, UTC):%Y-%m-%dT%H:%M:%S.%f}Z"
        line = {"at": at, "level": record.levelname, "event": record.getMessage()[:MOST_WORDS]}
        short = {k: v if isinstance(v, int | float) else str(v)[:2000] for k, v in fields.items()}
        return json.dumps(line | short)


@contextmanager
def logged(directory: Path) -> Iterator[None]:
    """Adds the process's lines to stderr and to a file that is rotated, bounded both."""
    file = RotatingFileHandler(directory / EVENTS, "a", LOG_BYTES, LOG_FILES - 1)
    handlers = [logging.StreamHandler(sys.stderr), file]
    LOG.setLevel(logging.INFO)
    for handler in handlers:
        handler.setFormatter(JsonLines())
        handler.addFilter(Seldom())
        logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        for handler in handlers:  # only ours: others may come and go meanwhile
            logging.getLogger().removeHandler(handler)
        file.close()
