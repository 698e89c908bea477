"""Server of an aggregator of a window: frames in, batches to the disk, answers out in order.

    frame     length u32 | content
    request   "r" report, receipts | "o" order
    answer    "d" acknowledgement, receipt | "d" what was ordered | "r" why it is refused

What has arrived by the time the last batch is on the disk is the next batch, one request of each
connection in turn: one wait for the disk for all of it. When there are more connections than files
may be open, the address with most of them loses its most idle one. Reports are signed and sealed,
so the line needs no secrecy of its own; with a certificate it is TLS, which also hides who reports.
"""

import asyncio
import resource
import socket
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import ExitStack

from train_distributed.flower.transport.frames import LENGTH
from train_distributed.secure_sum.aggregator import Aggregator, request_bytes
from train_distributed.secure_sum.session import Agreement

REPORT, ORDER = b"r", b"o"
MOST_LINES = 4096  # connections at once, if the process may open as many files
MOST_TLS_LINES = 256  # of which each has a buffer of 256 KiB in asyncio
OTHER_FILES = 128  # that stay for the state, and for connections that are being accepted
HANDSHAKE_SECONDS = 10.0
IDLE_SECONDS = 120.0  # without a whole request
BATCH_REQUESTS, BATCH_BYTES = 1024, 2**23
REQUEST_BYTES = 256  # that a waiting request takes besides its own
LINE_REQUESTS = 256  # of one connection that wait; beyond, it is not read for a while
WAITING_BYTES = 2**25  # of all connections that wait; beyond, none is read
UNREAD_BYTES = 2**17  # of answers that somebody does not fetch


async def serve(
    aggregator: Aggregator,
    window: Agreement,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    ready: Callable[[int], None],
) -> None:
    """Serves until the disk fails.

    Args:
        aggregator: what answers.
        window: what was agreed.
        host: address to listen on.
        port: port; 0: any.
        tls: its certificate, if it has one.
        ready: told the port.

    Raises:
        OSError: the address is taken, or the state cannot be written.
    """
    queue = _Queue(aggregator, 1 + request_bytes(window))
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    with ExitStack() as stack:
        listeners = [
            stack.enter_context(socket.create_server(address, family=family, backlog=1024))
            for family, address in dict.fromkeys((each[0], each[4]) for each in found)
        ]
        tasks = [asyncio.create_task(queue.work())]
        tasks += [asyncio.create_task(_accept(queue, each, tls)) for each in listeners]
        ready(listeners[0].getsockname()[1])
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            for line in list(queue.lines):
                line.close()


async def _accept(queue: "_Queue", listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Accepts all connections; closes another one when there are too many."""
    listener.setblocking(False)
    loop = asyncio.get_running_loop()
    while True:
        try:
            connection, address = await loop.sock_accept(listener)
        except OSError:  # hung up already, or no more files
            await asyncio.sleep(0.1)
            continue
        queue.lines.add(line := _Line(queue, str(address[0])))
        line.begin(connection, tls)
        if len(queue.lines) > _most_lines(tls):
            queue.crowded_out().close()
        await asyncio.sleep(0)  # so that whoever leaves is gone before the next one comes


def _most_lines(tls: ssl.SSLContext | None) -> int:
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_LINES if tls is None else MOST_TLS_LINES
    return most if files == resource.RLIM_INFINITY else max(1, min(most, files - OTHER_FILES))


class _Queue:
    """Requests of all connections, one of each in turn, and the aggregator that answers them."""

    def __init__(self, aggregator: Aggregator, largest: int) -> None:
        self._aggregator, self.largest = aggregator, largest
        self.lines: set[_Line] = set()
        self._turns: deque[_Line] = deque()  # connections with requests
        self._bytes, self._paused = 0, set[_Line]()
        self._there = asyncio.Event()

    def put(self, line: "_Line", request: bytes) -> None:
        """Queues a whole request of a connection."""
        if not line.waiting:
            self._turns.append(line)
        line.waiting.append(request)
        self._bytes += REQUEST_BYTES + len(request)
        self._there.set()

    def full(self, line: "_Line") -> bool:
        """Whether no more is taken of this connection for now; `work` goes on with it."""
        if len(line.waiting) < LINE_REQUESTS and self._bytes <= WAITING_BYTES:
            return False
        self._paused.add(line)
        return True

    def crowded_out(self) -> "_Line":
        """The connection that has been idle for longest, of the address with most connections."""
        count = Counter(line.address for line in self.lines)
        return max(self.lines, key=lambda line: (count[line.address], -line.last))

    async def work(self) -> None:
        """Answers, batch by batch."""
        sweep = time.monotonic() + IDLE_SECONDS
        while True:
            try:
                await asyncio.wait_for(self._there.wait(), IDLE_SECONDS)
            except TimeoutError:
                sweep = 0.0
            self._answer(self._batch())
            if not self._turns:
                self._there.clear()
            if self._bytes <= WAITING_BYTES // 2:
                for line in [line for line in self._paused if not line.waiting]:
                    self._paused.discard(line)
                    line.go_on()
            if time.monotonic() > sweep:
                sweep = time.monotonic() + IDLE_SECONDS
                for line in [line for line in self.lines if line.idle()]:
                    line.close()
            await asyncio.sleep(0)  # read what has come meanwhile

    def _batch(self) -> list[tuple["_Line", bytes]]:
        """Reports, one of each connection in turn, up to the next order; or that order."""
        batch, size = [], 0
        while self._turns and len(batch) < BATCH_REQUESTS and size < BATCH_BYTES:
            line = self._turns[0]
            order = line.waiting[0][:1] != REPORT
            if order and batch:
                break
            self._turns.popleft()
            batch.append((line, line.waiting.popleft()))
            size += REQUEST_BYTES + len(batch[-1][1])
            if line.waiting:
                self._turns.append(line)
            if order:
                break
        self._bytes -= size
        return batch

    def _answer(self, batch: list[tuple["_Line", bytes]]) -> None:
        requests = [request[1:] for _, request in batch]
        if batch and batch[0][1][:1] == ORDER:
            answers = [self._aggregator.order(requests[0])]
        elif batch and batch[0][1][:1] != REPORT:
            batch[0][0].close()
            return
        else:
            answers = self._aggregator.take(requests)
        for (line, _), answer in zip(batch, answers, strict=True):
            line.send(answer)


class _Line(asyncio.Protocol):
    """One connection, from the moment it is accepted."""

    def __init__(self, queue: _Queue, address: str) -> None:
        self.address, self.last = address, time.monotonic()
        self.waiting: deque[bytes] = deque()
        self._queue, self._content = queue, bytearray()
        self._transport: asyncio.Transport | None = None

    def begin(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Shakes hands, where there is a certificate, and reads."""
        self._beginning = asyncio.create_task(self._connect(connection, tls))

    async def _connect(self, connection: socket.socket, tls: ssl.SSLContext | None) -> None:
        seconds = None if tls is None else HANDSHAKE_SECONDS
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(
                lambda: self, connection, ssl=tls, ssl_handshake_timeout=seconds
            )
        except OSError:
            self._queue.lines.discard(self)
        except asyncio.CancelledError:
            connection.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection; whole requests that it sent are still worked on."""
        self._queue.lines.discard(self)

    def close(self) -> None:
        """Closes the connection at once."""
        self._queue.lines.discard(self)
        if self._transport is None:
            self._beginning.cancel()
        else:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Takes the next bytes; a length beyond what any request has ends the connection."""
        self._content += data
        self._take()

    def go_on(self) -> None:
        """Hands on what waited here, and reads again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._take()

    def _take(self) -> None:
        """Hands on whole requests, up to what may wait."""
        begin = 0
        while len(self._content) - begin >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._content, begin)
            end = begin + LENGTH.size + length
            if not 0 < length <= self._queue.largest:
                self.close()
                return
            if len(self._content) < end:
                break
            if self._queue.full(self):
                assert self._transport is not None
                self._transport.pause_reading()
                break
            self.last = time.monotonic()
            self._queue.put(self, bytes(self._content[begin + LENGTH.size : end]))
            begin = end
        del self._content[:begin]

    def send(self, answer: bytes) -> None:
        """Sends an answer, unless earlier ones pile up unread."""
        if self._transport is None or self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > UNREAD_BYTES:
            self.close()
            return
        self._transport.write(LENGTH.pack(len(answer)) + answer)

    def idle(self) -> bool:
        """Whether no whole request has come for long."""
        return time.monotonic() - self.last > IDLE_SECONDS
