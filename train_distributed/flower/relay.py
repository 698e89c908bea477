"""The coordinator's end of the pipe to the ServerApp: a `Relay` over Flower."""

import struct
from multiprocessing.connection import Connection

from train_distributed.flower.blobs import join_by_node, split_by_node

ASK, NODES = b"a", b"n"
GRACE_SECONDS = 15  # that the ServerApp may take beyond the nodes' time-out


class FlowerRelay:
    """Carries requests through a running ServerApp.

    Raises:
        ConnectionError: the ServerApp is gone, or does not keep to the time-out.
    """

    def __init__(self, connection: Connection, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds

    def nodes(self) -> list[int]:
        """Identities of the SuperNodes that are connected now."""
        answer = self._exchange(NODES, GRACE_SECONDS)
        return list(struct.unpack(f">{len(answer) // 8}Q", answer))

    def ask(self, requests: dict[int, bytes]) -> dict[int, bytes]:
        """Node -> answer, of those that answered within the time-out."""
        head = ASK + struct.pack(">d", self._seconds)
        return split_by_node(
            self._exchange(head + join_by_node(requests), self._seconds + GRACE_SECONDS)
        )

    def _exchange(self, request: bytes, seconds: float) -> bytes:
        try:
            self._connection.send_bytes(request)
            if not self._connection.poll(seconds):
                raise ConnectionError(f"ServerApp must answer within {seconds} s, did not")
            return self._connection.recv_bytes()
        except EOFError as error:
            raise ConnectionError("ServerApp must stay connected, hung up") from error
