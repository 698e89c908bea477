"""Flower ServerApp: carries the coordinator's requests to the nodes, and their answers back.

It runs in a process of the SuperLink; keys, journal and the protocol stay with the coordinator, on
whose socket it waits for work: "who is here", or "ask" with a time-out and, frame by frame, nodes
and requests. Shipped as it stands, so it uses nothing but Flower and the standard library.
"""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

import struct
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

NODES = b"n"  # any other first byte: ask
POLL_SECONDS = 0.5

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Works until the coordinator hangs up."""
    folder = Path(str(context.run_config["desk"]))
    key = (folder / "desk.key").read_bytes()
    with Client(str(folder / "desk.sock"), authkey=key) as coordinator:
        while True:
            try:
                request = coordinator.recv_bytes()
            except EOFError:
                return
            _serve(grid, coordinator, request)


def _serve(grid: Grid, coordinator: Connection, request: bytes) -> None:
    if request[:1] == NODES:
        nodes = list(grid.get_node_ids())
        coordinator.send_bytes(struct.pack(f">{len(nodes)}Q", *nodes))
        return
    seconds, count = struct.unpack(">dI", request[1:])
    requests = {}
    for _ in range(count):
        (node,) = struct.unpack(">Q", coordinator.recv_bytes())
        requests[node] = coordinator.recv_bytes()
    answers = _ask(grid, requests, seconds)
    coordinator.send_bytes(struct.pack(">I", len(answers)))
    for node, answer in answers.items():
        coordinator.send_bytes(struct.pack(">Q", node))
        coordinator.send_bytes(answer)


def _ask(grid: Grid, requests: dict[int, bytes], seconds: float) -> dict[int, bytes]:
    """Node -> answer, of those that answered before the time was up."""
    deadline = time.monotonic() + seconds
    messages = [
        Message(
            RecordDict({"secure-sum": ConfigRecord({"message": request})}),
            dst_node_id=node,
            message_type="query",
            ttl=seconds,
        )
        for node, request in requests.items()
    ]
    waiting = set(grid.push_messages(messages))
    answers: dict[int, bytes] = {}
    while waiting and time.monotonic() < deadline:
        for reply in grid.pull_messages(waiting):
            waiting.discard(reply.metadata.reply_to_message_id)
            if reply.has_content() and "secure-sum" in reply.content.config_records:
                answer = reply.content.config_records["secure-sum"].get("message")
                if isinstance(answer, bytes):
                    answers[reply.metadata.src_node_id] = answer
        time.sleep(POLL_SECONDS)
    return answers
