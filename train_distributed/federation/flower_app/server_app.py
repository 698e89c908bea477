"""ServerApp: brings parties' polls to the operator's service, and what it answers to the nodes.

For each node one thing is under way: a message to it, or a poll at the operator. A message that is
lost is sent again; the party answers what it has answered before by the same bytes.
"""

# pyright: reportMissingImports=false
import base64
import http.client
import ssl
import time
from concurrent.futures import Future, ThreadPoolExecutor
from urllib.parse import urlsplit

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

HEAD_BYTES = 1 + 32 + 132  # before a poll: is its party done, federation, what a header shows
NOTHING = (204).to_bytes(2, "big")  # there is no question yet
LATER = {204, 408, 429, 500, 502, 503, 504}  # statuses after which the same poll is sent again
NODE_SECONDS = 90.0  # that a message has to a node and back, until it is sent again
POLL_SECONDS = 60.0  # that the operator has to answer a poll
FRESH_SECONDS = 300.0  # after which a party that nobody asks is asked for a fresh poll
RETRY_SECONDS = 2.0  # before the operator is tried again
AGAIN_SECONDS = 5.0  # before a node without an answer is asked again
LOOK_SECONDS = 0.25  # between looks at what has come
Answer = tuple[int, bytes] | None  # status and content of the operator's; None: there is none
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Carries until all parties are done, or the operator is gone."""
    config = context.run_config
    operator = Operator(str(config["operator"]), str(config["ca"]), float(config["patience"]))
    with ThreadPoolExecutor(1000) as threads:
        try:
            Carrier(grid, operator, threads).run()
        finally:
            operator.patience = 0.0  # so that no thread tries on


class Carrier:
    """One run.

    Args:
        grid: of Flower.
        operator: whose service the parties' polls are for.
        threads: one for each poll that waits there.
    """

    def __init__(self, grid: Grid, operator: "Operator", threads: ThreadPoolExecutor) -> None:
        self._grid, self._operator, self._threads = grid, operator, threads
        self._asked: dict[str, tuple[int, float]] = {}  # message -> its node, and until when
        self._polls: dict[Future[bytes], int] = {}  # at the operator -> the node they are of
        self._free: dict[int, float] = {}  # nodes that nothing is under way for -> asked from then
        self._told: dict[int, bytes] = {}  # node -> what it was sent last
        self._over: set[int] = set()  # nodes whose party is done
        self._refused: dict[int, str] = {}  # node -> what was said of it

    def run(self) -> None:
        """Carries until all parties are done, or the operator is gone.

        Raises:
            ConnectionError: it has never answered.
        """
        nodes, looked, look = set[int](), float("-inf"), None
        while not self._operator.gone and not (nodes and nodes <= self._over):
            now = time.monotonic()
            if now - looked >= RETRY_SECONDS:
                nodes, looked = set(self._grid.get_node_ids()), now
                if look is None or look.done():
                    look = self._threads.submit(self._operator.look)
                under_way = {n for n, _ in self._asked.values()} | {*self._polls.values()}
                self._free = {n: self._free.get(n, now) for n in nodes - under_way - self._over}
            self._send({n: self._told.get(n, NOTHING) for n, at in self._free.items() if at <= now})
            self._receive(now)
            done = {self._polls.pop(p): p.result() for p in [*self._polls] if p.done()}
            self._send({n: told for n, told in done.items() if n not in self._over})
            time.sleep(LOOK_SECONDS)
        if not self._operator.answered:
            raise ConnectionError(f"operator must answer, did not: {self._operator.why}")

    def _send(self, contents: dict[int, bytes]) -> None:
        if not contents:
            return
        messages = [
            Message(
                RecordDict({"relay": ConfigRecord({"content": content})}),
                dst_node_id=node,
                message_type="query",
                ttl=NODE_SECONDS,
            )
            for node, content in contents.items()
        ]
        until = time.monotonic() + NODE_SECONDS
        names = self._grid.push_messages(messages)
        for node, name in zip(contents, names, strict=True):
            self._free.pop(node, None)
            self._told[node] = contents[node]
            if name:
                self._asked[name] = node, until
            else:
                self._refuse(node, "Flower does not take messages to it")

    def _receive(self, now: float) -> None:
        """Takes answers of nodes to the operator; a node without one is asked again."""
        for reply in self._grid.pull_messages([*self._asked]) if self._asked else ():
            node, _ = self._asked.pop(reply.metadata.reply_to_message_id, (None, 0.0))
            if node is None:
                continue
            if reply.has_error():
                self._refuse(node, reply.error.reason or "Flower has lost the message to it")
                continue
            record = reply.content.config_records.get("relay", {})
            told = record.get("poll")
            if not isinstance(told, bytes) or len(told) <= HEAD_BYTES:
                words = str(record.get("refused", "it must bring a poll, brought none"))
                self._refuse(node, "".join(filter(str.isprintable, words[:300])))
                continue
            self._refused.pop(node, None)
            if told[0]:
                self._over.add(node)
            self._polls[self._threads.submit(self._operator.answer, told)] = node
        for name in [name for name, (_, until) in self._asked.items() if until < now]:
            self._refuse(self._asked.pop(name)[0], f"it must answer within {NODE_SECONDS:g} s")

    def _refuse(self, node: int, why: str) -> None:
        self._free[node] = time.monotonic() + AGAIN_SECONDS
        if self._refused.get(node) != why:
            self._refused[node] = why
            print(f"node {node}: {why}", flush=True)


class Operator:
    """The operator's service.

    Args:
        url: https://HOST:PORT, or http:// on this machine behind a proxy.
        ca: file with its certificate, or the authority; empty: authorities of the system.
        patience: seconds without an answer after which it is gone.
    """

    def __init__(self, url: str, ca: str, patience: float) -> None:
        self.url, self.patience = urlsplit(url), patience
        if self.url.scheme not in ("http", "https") or not self.url.hostname:
            raise ValueError(f"operator must be https://HOST:PORT, got {url!r}")
        self._tls = ssl.create_default_context(cafile=ca or None)
        self._missed: float | None = time.monotonic()  # since when it does not answer
        self.answered, self.why = False, ""

    @property
    def gone(self) -> bool:
        """Whether the operator has given no answer for longer than `patience`."""
        return self._missed is not None and time.monotonic() - self._missed > self.patience

    def look(self) -> None:
        """Finds out whether the operator answers."""
        self._ask("GET", "/healthz")

    def answer(self, told: bytes) -> bytes:
        """The operator's answer to a party's poll: status u16 | content."""
        digest, shown, poll = told[1:33], told[33:HEAD_BYTES], told[HEAD_BYTES:]
        until = time.monotonic() + FRESH_SECONDS
        while time.monotonic() < until and not self.gone:
            began = time.monotonic()
            answered = self._ask("POST", f"/relay/{digest.hex()}", shown, poll)
            if answered is not None and answered[0] not in LATER:
                return answered[0].to_bytes(2, "big") + answered[1]
            time.sleep(max(0.0, RETRY_SECONDS - (time.monotonic() - began)))
        return NOTHING

    def _ask(self, verb: str, path: str, shown: bytes = b"", poll: bytes = b"") -> Answer:
        host, port, headers = self.url.hostname or "", self.url.port, {}
        if poll:
            summary = base64.b64encode(shown).decode()
            headers = {"content-type": "application/octet-stream", "message-summary": summary}
        if self.url.scheme == "http":
            line = http.client.HTTPConnection(host, port, timeout=POLL_SECONDS)
        else:
            line = http.client.HTTPSConnection(host, port, timeout=POLL_SECONDS, context=self._tls)
        try:
            line.request(verb, path, poll or None, headers)
            response = line.getresponse()
            answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self._missed = self._missed or time.monotonic()
            self._say(f"operator must answer at {self.url.geturl()}: {error}")
            return None
        finally:
            line.close()
        self._missed, self.answered = None, True
        self._say("operator answers")
        return answer

    def _say(self, words: str) -> None:
        if words != self.why:
            self.why = words
            print(words, flush=True)
