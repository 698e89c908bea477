"""The operator's process that talks to the network: Flower's SuperLink, and a line to the operator.

It holds the TLS key and the nodes' public keys, but none of the federation's: what passes through
is signed and encrypted end to end. Of the SuperLink it runs the state and the handlers that nodes
need; there is no way in but the calls of `fleet_api`, and no app ever runs.

    operator -> hub   configuration (JSON) | ASK node u64, request | FORGET node | WHO
    hub -> operator   READY (JSON: node of each key) | FAILED words | HERE (JSON: nodes) |
                      ANSWER node, answer | BAD node, words
"""

import asyncio
import contextlib
import json
import os
import resource
import socket
import ssl
import threading
from functools import partial
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from uvicorn.server import ServerState

from train_distributed.flower.transport import flower_internals as flower
from train_distributed.flower.transport import frames
from train_distributed.flower.transport.fleet_api import FleetApi
from train_distributed.flower.transport.limited_http import Line, accept, http_config
from train_distributed.flower.transport.message_queue import MessageQueue
from train_distributed.flower.transport.places import Places
from train_distributed.flower.transport.processes import started
from train_distributed.flower.transport.sandbox import confine

STRANGER_SECONDS = 10.0  # from the handshake to a header with a registered key's signature
LINES_OF_A_KEY = 16
STRANGERS = 512
FILES = 2**16  # that may be open, where the system allows it


def main(line: int, parent: int) -> None:
    """Runs until the operator hangs up.

    Args:
        line: file descriptor of the socket to the operator.
        parent: the operator's process.
    """
    with started(line, parent) as (operator, config):
        try:
            OperatorServer(operator, config).run()
        except (OSError, ValueError, ssl.SSLError) as error:
            with contextlib.suppress(OSError):
                frames.send(operator, frames.FAILED, f"{type(error).__name__}: {error}".encode())


class OperatorServer:
    """The SuperLink and the two threads that move messages between it and the operator."""

    def __init__(self, operator: socket.socket, config: dict[str, Any]) -> None:
        self._operator, self._largest = operator, int(config["largest"])
        self._line = threading.Lock()
        state = flower.memory_state()
        keys = [
            flower.public_key_to_bytes(load_ssh_public_key(text.encode()))  # pyright: ignore[reportArgumentType]
            for text in config["nodes"]
        ]
        self._nodes = {
            key: state.create_node(flower.NOOP_FLWR_AID, flower.NOOP_ACCOUNT_NAME, key, 0.0)
            for key in keys
        }
        self._queue = MessageQueue(state, self._largest)
        api = FleetApi(state, self._nodes, self._largest, self._queue.note)
        self._socket = socket.create_server((config["host"], config["port"]), backlog=1024)
        files = {"ssl_certfile": config["certificate"], "ssl_keyfile": config["key"]}
        self._serving = http_config(api, **files)
        own = Path(os.environ["TMPDIR"])
        self._confined = confine(own, (), 2**31 + 64 * self._largest)

    def run(self) -> None:
        """Serves nodes in this thread, the operator in two others."""
        ready = {"nodes": list(self._nodes.values()), "confined": self._confined}
        frames.send(self._operator, frames.READY, json.dumps(ready).encode())
        for work in (self._take, self._bring):
            threading.Thread(target=self._while_wanted, args=(work,), daemon=True).start()
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        state, serving = ServerState(), self._serving
        places = Places(_strangers(LINES_OF_A_KEY * len(self._nodes)), LINES_OF_A_KEY)
        line = partial(Line, serving, state, places, STRANGER_SECONDS)
        await accept(self._socket, places, line, serving.ssl)

    def _while_wanted(self, work: Any) -> None:
        """The hub ends with the operator's line, whatever the server is doing."""
        try:
            while True:
                work()
        except (OSError, ConnectionError):
            os._exit(0)

    def _take(self) -> None:
        """One frame of the operator's."""
        frame = frames.receive(self._operator, 1 + frames.NODE.size + self._largest)
        if frame is None:
            return
        kind, body = frame[:1], memoryview(frame)[1:]
        if kind == frames.WHO:
            self._tell(frames.HERE, json.dumps(self._queue.here()).encode())
        elif kind == frames.FORGET:
            self._queue.forget(*frames.NODE.unpack(body))
        elif kind == frames.ASK:
            (node,) = frames.NODE.unpack_from(body)
            self._queue.send(node, bytes(body[frames.NODE.size :]))

    def _bring(self) -> None:
        """Sends the operator what nodes have answered since."""
        for node, answer, words in self._queue.collect():
            if answer is None:
                self._tell(frames.BAD, frames.NODE.pack(node), words.encode())
            else:
                self._tell(frames.ANSWER, frames.NODE.pack(node), answer)

    def _tell(self, *parts: bytes) -> None:
        with self._line:
            frames.send(self._operator, *parts)


def _strangers(registered: int) -> int:
    """Places for strangers: a quarter of the open files, or what registered keys leave of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = wanted if soft == resource.RLIM_INFINITY else soft
    return max(16, min(STRANGERS, soft // 4, soft - registered))
