"""The coordinator's end of the pipe to the ServerApp: a `Relay` over Flower."""

import struct
from multiprocessing.connection import Connection

NODES, ASK = b"n", b"a"
GRACE_SECONDS = 15  # that the ServerApp may take beyond the nodes' time-out


class FlowerRelay:
    """Carries requests through a running ServerApp, frame by frame (`server_app.py`).

    Raises:
        ConnectionError: the ServerApp is gone, or does not keep to the time-out.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds

    def nodes(self) -> list[int]:
        """Identities of the SuperNodes that are connected now."""
        self._connection.send_bytes(NODES)
        answer = self._receive(GRACE_SECONDS)
        return list(struct.unpack(f">{len(answer) // 8}Q", answer))

    def ask(self, requests: dict[int, bytes]) -> dict[int, bytes]:
        """Node -> answer, of those that answered within the time-out."""
        self._connection.send_bytes(ASK + struct.pack(">dI", self._seconds, len(requests)))
        for node, request in requests.items():
            self._connection.send_bytes(struct.pack(">Q", node))
            self._connection.send_bytes(request)
        (count,) = struct.unpack(">I", self._receive(self._seconds + GRACE_SECONDS))
        answers = {}
        for _ in range(count):
            (node,) = struct.unpack(">Q", self._receive(GRACE_SECONDS))
            answers[node] = self._receive(GRACE_SECONDS)
        return answers

    def _receive(self, seconds: float) -> bytes:
        try:
            if not self._connection.poll(seconds):
                raise ConnectionError(f"ServerApp must answer within {seconds} s, did not")
            return self._connection.recv_bytes()
        except EOFError as error:
            raise ConnectionError("ServerApp must stay connected, hung up") from error
