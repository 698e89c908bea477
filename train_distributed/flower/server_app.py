"""Flower ServerApp: carries the coordinator's requests to the nodes, and their answers back.

It runs in a process of the SuperLink; keys, journal and the protocol stay with the coordinator, on
whose socket it waits for work: one byte (who is here, ask, or stop) and a body.
"""

import struct
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from train_distributed.flower.blobs import join_by_node, split_by_node

NODES, ASK = b"n", b"a"
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
    elif request[:1] == ASK:
        (seconds,) = struct.unpack_from(">d", request, 1)
        answers = _ask(grid, split_by_node(request[9:]), seconds)
        coordinator.send_bytes(join_by_node(answers))


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
