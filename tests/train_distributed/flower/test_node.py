"""A node gives up in its stated time once nobody is there, whatever its SuperNode does."""

import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from train_distributed.flower import node as nodes
from train_distributed.flower.node import Node, serve
from train_distributed.flower.processes import free_port

SECONDS = 1.0


class Silent:
    def answer(self, request: bytes) -> bytes:
        return request


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files that a node needs, and a SuperNode that never ends by itself."""
    for name in ("ca.pem", "node-key"):
        (tmp_path / name).touch()
    endless = [sys.executable, "-c", "import time; time.sleep(1000)"]
    monkeypatch.setattr(nodes, "_supernode", lambda node, desk: endless)
    monkeypatch.setattr(nodes, "RETRY_SECONDS", 0)
    return tmp_path


def lone(keys: Path, superlink: str) -> Node:
    return Node(Silent(), superlink, keys / "ca.pem", keys, SECONDS)


def test_without_an_operator_it_gives_up(keys: Path) -> None:
    start = time.monotonic()
    assert serve(lone(keys, f"127.0.0.1:{free_port()}")) == 1
    assert SECONDS <= time.monotonic() - start < 10 * SECONDS


def test_it_waits_while_an_operator_listens(keys: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as operator:
        node, ended = lone(keys, f"127.0.0.1:{operator.getsockname()[1]}"), []
        thread = threading.Thread(target=lambda: ended.append(serve(node)), daemon=True)
        thread.start()
        thread.join(4 * SECONDS)
        assert not ended
    thread.join(20 * SECONDS)
    assert ended == [1]


@pytest.mark.parametrize(
    "superlink", ["example.org", ":9092", "example.org:https", "example.org:65536"]
)
def test_an_address_without_a_port_is_refused(keys: Path, superlink: str) -> None:
    with pytest.raises(ValueError, match=f"superlink must be HOST:PORT, got '{superlink}'"):
        serve(lone(keys, superlink))
