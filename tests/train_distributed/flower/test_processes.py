"""Processes that talk to the network hold nothing, reach nothing, and end with their parent."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.ports import free_port
from train_distributed.flower.documents.key_files import write_node_key
from train_distributed.flower.transport import frames
from train_distributed.flower.transport.processes import child

linux = pytest.mark.skipif(sys.platform != "linux", reason="prctl and Landlock are Linux's")
flower = pytest.mark.skipif(find_spec("flwr") is None, reason="needs the flower extra")
ROOT = Path(__file__).parents[3]

_PARENT = """
import sys, time
from pathlib import Path
from train_distributed.flower.transport.processes import child
config = {"address": "127.0.0.1:1", "ca": "", "key": Path(sys.argv[1]).read_text(),
          "largest": 1000, "poll": 1.0}
with child("carrier", config) as carrier:
    print(carrier.process.pid, flush=True)
    time.sleep(600)
"""

_CONFINED = """
import os, socket, sys
from pathlib import Path
from train_distributed.flower.transport.sandbox import confine
own, secret, port = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if not confine(own, (port,), 2**31):
    sys.exit(9)
def tried(what):
    try:
        what()
    except OSError as error:
        return type(error).__name__
    return "done"
print(tried(lambda: (own / "mine").write_text("x")))
print(tried(lambda: secret.read_text()))
print(tried(lambda: os.listdir(secret.parent)))
print(tried(lambda: os.kill(os.getppid(), 0)))
print(tried(lambda: open(f"/proc/{os.getppid()}/mem", "rb")))
print(tried(lambda: socket.create_connection(("127.0.0.1", port))))
print(tried(lambda: socket.create_connection(("127.0.0.1", port + 1))))
print(tried(lambda: socket.create_server(("127.0.0.1", 0))))
"""


def _alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def _run(code: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def test_frames_are_whole_and_no_longer_than_agreed() -> None:
    here, there = frames.socket.socketpair()
    with here, there:
        frames.send(here, b"ab", b"", b"c" * 1000)
        assert frames.receive(there, 1002) == b"ab" + b"c" * 1000
        assert frames.receive(there, 10, 0.01) is None
        frames.send(here, bytes(11))
        with pytest.raises(ConnectionError, match="frame must be <= 10 bytes, got 11"):
            frames.receive(there, 10)
    here, there = frames.socket.socketpair()
    with there:
        assert not frames.hung_up(there)
        here.sendall(b"\0\0")
        here.close()
        assert not frames.hung_up(there)
        with pytest.raises(ConnectionError, match="hung up"):
            frames.receive(there, 10)
        assert frames.hung_up(there)


@linux
@flower
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_ends_with_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    write_node_key(tmp_path)
    with _run(_PARENT, str(tmp_path / "node-key")) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert _alive(pid)
        parent.send_signal(how)
        parent.wait()
        deadline = time.monotonic() + 20
        while _alive(pid):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@linux
@flower
def test_a_carrier_is_started_with_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No environment, no path, no module of ours beyond the carrier's, and none that computes."""
    write_node_key(tmp_path)
    monkeypatch.setenv("A_SECRET", "of the user")
    config = {"address": f"127.0.0.1:{free_port()}", "ca": "", "largest": 1000, "poll": 1.0}
    config["key"] = (tmp_path / "node-key").read_text()
    with child("carrier", config, tmp_path / "log") as carrier:
        first = frames.receive(carrier.line, 1000, 60)
        assert first is not None, (tmp_path / "log").read_text()
        proc = Path(f"/proc/{carrier.process.pid}")
        environment = (proc / "environ").read_bytes()
        arguments = (proc / "cmdline").read_bytes()
        mapped = (proc / "maps").read_text()
        home = (proc / "cwd").resolve()
        opened = {os.readlink(fd) for fd in (proc / "fd").iterdir()}
    for text in (environment, arguments):
        assert b"A_SECRET" not in text
        assert str(tmp_path).encode() not in text
    assert home.name.startswith("carrier-")
    assert not home.exists()
    assert not [name for name in opened if name.startswith(str(tmp_path)) and "log" not in name]
    assert "torch" not in mapped


@linux
def test_what_is_confined_reaches_its_own_directory_and_one_port(tmp_path: Path) -> None:
    own, folder = tmp_path / "own", tmp_path / "party"
    own.mkdir()
    folder.mkdir()
    (folder / "private.json").write_text(json.dumps({"signing": "00"}))
    with frames.socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with _run(_CONFINED, str(own), str(folder / "private.json"), str(port)) as process:
            printed, _ = process.communicate(timeout=60)
    if process.returncode == 9:
        pytest.skip("this kernel has no Landlock")
    denied = "PermissionError"
    done, connected = "done", "done"
    assert printed.split() == [done, *[denied] * 4, connected, denied, denied]
