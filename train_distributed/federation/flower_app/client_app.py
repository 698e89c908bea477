"""ClientApp: hands bytes to the party's own process over a Unix socket, and brings its poll back.

The socket is named by the node's configuration (`socket`), or in a simulation by the run's: there
the party of partition N listens at N.sock in the folder `sockets`. Nothing is kept here.
"""

# pyright: reportMissingImports=false
import socket
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

SECONDS = 300.0  # that a party has to answer
app = ClientApp()


@app.query()
def carry(message: Message, context: Context) -> Message:
    """The party's poll, or in words why there is none."""
    node, sockets = context.node_config, context.run_config.get("sockets", "")
    path = str(node.get("socket") or f"{sockets}/{node.get('partition-id')}.sock")
    content: Any = message.content.config_records["relay"]["content"]
    told = ConfigRecord()
    try:
        told["poll"] = ask(path, content)
    except OSError as error:
        told["refused"] = f"no party answers at {path}: {error.strerror or error}"
    return Message(RecordDict({"relay": told}), reply_to=message)


def ask(path: str, content: bytes) -> bytes:
    """Sends content to the party that listens at a path, and returns the party's answer.

    Raises:
        OSError: nobody listens there, or the party broke off.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as party:
        party.settimeout(SECONDS)
        party.connect(path)
        party.sendall(content)
        party.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: party.recv(2**20), b""))
    if not answer:
        raise OSError("it broke off")
    return answer
