"""Flower ClientApp: hands each message to the party's own process, and its answer back.

Shipped to the nodes as it stands, so it uses nothing but Flower and the standard library.
"""

# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

from multiprocessing.connection import Client
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def pass_on(message: Message, context: Context) -> Message:
    """One request in, one answer out; where the desk is stands in the node's configuration."""
    folder = Path(str(context.node_config["desk"]))
    request = message.content.config_records["secure-sum"]["message"]
    if not isinstance(request, bytes):
        raise TypeError(f"message must be bytes, got {type(request).__name__}")
    with Client(str(folder / "desk.sock"), authkey=(folder / "desk.key").read_bytes()) as desk:
        desk.send_bytes(request)
        answer = desk.recv_bytes()
    content = RecordDict({"secure-sum": ConfigRecord({"message": answer})})
    return Message(content, reply_to=message)
