"""Server of an aggregator of a window: frames in, batches to the disk, answers out in order.

    frame     length u32 | content
    request   "r" report, receipts | "o" order
    answer    "d" receipt or what was ordered | "r" why it is refused

What has arrived by the time the last batch is on the disk is the next batch: one wait for the disk
for all of it. Checks may be spread over processes, each with a slice of the batch's users, whose
small sums are added here. Reports are signed and sealed, so the line needs no secrecy of its own;
with a certificate it is TLS, which also hides who reports.
"""

import asyncio
import multiprocessing
import os
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from train_distributed.flower.transport.frames import LENGTH
from train_distributed.flower.transport.sandbox import leash
from train_distributed.secure_sum.aggregator import Aggregator, Check, request_bytes
from train_distributed.secure_sum.reports import Checked, Checker
from train_distributed.secure_sum.session import Agreement

REPORT, ORDER = b"r", b"o"
MOST_LINES = 4096  # connections at once
IDLE_SECONDS = 120.0  # without a whole request
BATCH_REQUESTS, BATCH_BYTES = 1024, 2**23
WAITING_BYTES = 2**25  # beyond, nobody's requests are read for a while
UNREAD_BYTES = 2**20  # of answers that somebody does not fetch


async def serve(
    aggregator: Aggregator,
    window: Agreement,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    ready: Callable[[int], None],
) -> None:
    """Serves until the disk or the clock fails.

    Args:
        aggregator: what answers.
        window: what was agreed.
        host: address to listen on.
        port: port; 0: any.
        tls: its certificate, if it has one.
        ready: told the port.

    Raises:
        OSError: the address is taken, or the state cannot be written.
        ValueError: the clock has gone back.
    """
    queue = _Queue(aggregator, 1 + request_bytes(window))
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Line(queue), host, port, ssl=tls, backlog=1024)
    async with server:
        ready(server.sockets[0].getsockname()[1])
        await queue.work()


class _Queue:
    """Requests in the order of their arrival, and the aggregator that answers them."""

    def __init__(self, aggregator: Aggregator, largest: int) -> None:
        self._aggregator, self.largest = aggregator, largest
        self.lines: set[_Line] = set()
        self._requests: deque[tuple[_Line, bytes]] = deque()
        self._bytes, self._paused = 0, set[_Line]()
        self._there = asyncio.Event()

    def put(self, line: "_Line", request: bytes) -> None:
        """A whole request."""
        self._requests.append((line, request))
        self._bytes += len(request)
        if self._bytes > WAITING_BYTES:
            line.transport.pause_reading()
            self._paused.add(line)
        self._there.set()

    async def work(self) -> None:
        """Answers, batch by batch."""
        sweep = time.monotonic() + IDLE_SECONDS
        while True:
            try:
                await asyncio.wait_for(self._there.wait(), IDLE_SECONDS)
            except TimeoutError:
                sweep = 0.0
            self._answer(self._batch())
            if not self._requests:
                self._there.clear()
            if self._bytes <= WAITING_BYTES // 2:
                for line in self._paused & self.lines:
                    line.transport.resume_reading()
                self._paused.clear()
            if time.monotonic() > sweep:
                sweep = time.monotonic() + IDLE_SECONDS
                for line in [line for line in self.lines if line.idle()]:
                    line.transport.abort()
            await asyncio.sleep(0)  # read what has come meanwhile

    def _batch(self) -> list[tuple["_Line", bytes]]:
        """Reports up to the next order, or that order."""
        batch, size = [], 0
        while self._requests and len(batch) < BATCH_REQUESTS and size < BATCH_BYTES:
            order = self._requests[0][1][:1] != REPORT
            if order and batch:
                break
            batch.append(self._requests.popleft())
            size += len(batch[-1][1])
            if order:
                break
        self._bytes -= size
        return batch

    def _answer(self, batch: list[tuple["_Line", bytes]]) -> None:
        requests = [request[1:] for _, request in batch]
        if batch and batch[0][1][:1] == ORDER:
            answers = [self._aggregator.order(requests[0])]
        elif batch and batch[0][1][:1] != REPORT:
            batch[0][0].transport.abort()
            return
        else:
            answers = self._aggregator.take(requests)
        for (line, _), answer in zip(batch, answers, strict=True):
            line.send(answer)


class _Line(asyncio.Protocol):
    """One connection."""

    transport: asyncio.Transport

    def __init__(self, queue: _Queue) -> None:
        self._queue, self._content, self._last = queue, bytearray(), time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Lets it in, or closes it."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._queue.lines.add(self)
        if len(self._queue.lines) > MOST_LINES:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets it; what it sent whole is taken all the same."""
        self._queue.lines.discard(self)

    def data_received(self, data: bytes) -> None:
        """Hands on whole requests; a length beyond what any request has ends the connection."""
        self._content += data
        while len(self._content) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._content)
            if not 0 < length <= self._queue.largest:
                self.transport.abort()
                return
            end = LENGTH.size + length
            if len(self._content) < end:
                return
            self._last = time.monotonic()
            self._queue.put(self, bytes(self._content[LENGTH.size : end]))
            del self._content[:end]

    def send(self, answer: bytes) -> None:
        """Sends an answer, unless earlier ones pile up unread."""
        if self.transport.is_closing():
            return
        if self.transport.get_write_buffer_size() > UNREAD_BYTES:
            self.transport.abort()
            return
        self.transport.write(LENGTH.pack(len(answer)) + answer)

    def idle(self) -> bool:
        """Whether no whole request has come for long."""
        return time.monotonic() - self._last > IDLE_SECONDS


@contextmanager
def spread(check: Checker, processes: int) -> Iterator[Check]:
    """Spreads a check over processes, each of which takes a slice of the messages.

    Raises:
        ValueError: processes < 1.
    """
    if processes < 1:
        raise ValueError(f"processes must be >= 1, got {processes}")
    if processes == 1:
        yield check
        return
    fork = multiprocessing.get_context("fork")  # before there is any thread; keys are not sent
    begin = (check, os.getpid())
    with ProcessPoolExecutor(processes, fork, initializer=_begin, initargs=begin) as pool:
        list(pool.map(_slice, [[]] * processes))  # starts them
        yield partial(_spread, pool, processes)


def _spread(pool: ProcessPoolExecutor, processes: int, messages: Sequence[bytes]) -> Checked:
    try:
        slices = list(pool.map(_slice, [messages[p::processes] for p in range(processes)]))
    except BrokenProcessPool as error:
        raise OSError("all processes of an aggregator must run, one was killed") from error
    found = [slices[place % processes].found[place // processes] for place in range(len(messages))]
    total = slices[0].total
    for each in slices[1:]:
        total += each.total
    return Checked(found, total)


_checks: list[Checker] = []  # of a process of the pool


def _begin(check: Checker, parent: int) -> None:
    leash(parent)
    _checks.append(check)


def _slice(messages: Sequence[bytes]) -> Checked:
    return _checks[0](messages)
