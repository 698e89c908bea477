"""Strangers with host, port and CA reach nothing; an operator's own app runs on no node.

Real processes and TLS on loopback, and Flower's own command line against them.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs the flower extra"),
]

_PROJECT = """
[project]
name = "foreign"
version = "1.0.0"
description = "Reads what it can."
license = { text = "Apache-2.0" }
dependencies = ["flwr>=1.41"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "stranger"
[tool.flwr.app.components]
serverapp = "foreign_server:app"
clientapp = "foreign_client:app"
[tool.flwr.app.config]
canary = ""
"""
_CLIENT = """
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()

def steal(message, context):
    folder = Path(str(context.run_config["canary"]))
    (folder / f"ran-on-{context.node_id}").touch()
    return Message(RecordDict({"secure-sum": ConfigRecord({"message": b"x"})}), reply_to=message)

app.train()(steal)
app.query()(steal)
"""
_SERVER = """
import json, time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
app = ServerApp()

@app.main()
def main(grid, context):
    folder, found = Path(str(context.run_config["canary"])), {}
    nodes = []
    while len(nodes) < 2:
        nodes = list(grid.get_node_ids())
        time.sleep(0.5)
    contents = {
        "train": RecordDict({"secure-sum": ConfigRecord({"message": b"x"})}),
        "query": RecordDict({"other": ConfigRecord({"message": b"x"})}),
        "query.steal": RecordDict({"secure-sum": ConfigRecord({"message": b"x"})}),
    }
    for kind, content in contents.items():
        messages = [Message(content, node, kind, ttl=60) for node in nodes]
        replies = grid.send_and_receive(messages, timeout=60)
        found[kind] = [r.error.reason if r.has_error() else "answered" for r in replies]
    (folder / "replies.part").write_text(json.dumps(found))
    (folder / "replies.part").rename(folder / "replies.json")
"""


class Flwr:
    """Flower's command line, with a home of its own."""

    def __init__(self, home: Path, port: int, ca: Path) -> None:
        self.home = home
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "federation"\n\n[superlink.federation]\n'
            f'address = "127.0.0.1:{port}"\nroot-certificates = "{ca}"\n'
        )
        app = home / "app"
        app.mkdir()
        (app / "pyproject.toml").write_text(_PROJECT)
        (app / "foreign_client.py").write_text(_CLIENT)
        (app / "foreign_server.py").write_text(_SERVER)

    @property
    def environment(self) -> dict[str, str]:
        path = str(Path(sys.executable).parent) + os.pathsep + os.environ["PATH"]
        return os.environ | {
            "PATH": path,
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
        }

    def __call__(self, *arguments: str) -> tuple[bool, str]:
        """Whether it succeeded, and what it printed."""
        done = subprocess.run(
            [str(Path(sys.executable).parent / "flwr"), *arguments, "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        text = done.stdout + done.stderr
        return done.returncode == 0 and '"success": false' not in text, text

    def run_app(self, canary: Path) -> tuple[bool, str]:
        return self("run", str(self.home / "app"), "--run-config", f'canary="{canary}"')


def test_a_stranger_lists_submits_and_registers_nothing(
    make_field: Callable[..., Any], tmp_path: Path
) -> None:
    field = make_field()
    operator = field.operator(seconds=300)
    for party in field.users[:2]:
        field.node(party)
    field.wait_for(lambda: len(field.status().get("present", [])) == 2)
    ca = (field.folder / "tls" / "ca.pem").resolve()
    flwr, canary = Flwr(tmp_path / "home", field.port, ca), tmp_path / "canary"
    canary.mkdir()
    for arguments in (
        ("list",),
        ("supernode", "list"),
        ("supernode", "register", str(field.folder / "user2" / "node-key.pub")),
        ("federation", "list"),
    ):
        done, text = flwr(*arguments)
        assert not done, text
    done, text = flwr.run_app(canary)
    assert not done, text
    assert _statuses(field.port, ca) == {404: len(_paths()) - 8, 401: 8}
    assert operator.poll() is None
    assert len(field.status()["present"]) == 2
    assert list(canary.iterdir()) == []
    for party in field.users[2:]:
        field.node(party)
    assert operator.wait(120) == 0
    assert field.opened() == list(range(5))


def test_an_operators_own_app_runs_on_no_node(
    make_field: Callable[..., Any], tmp_path: Path
) -> None:
    """Against Flower's own SuperLink, with all its interfaces: the nodes answer with a refusal."""
    field = make_field()
    ca = (field.folder / "tls" / "ca.pem").resolve()
    flwr, canary = Flwr(tmp_path / "home", field.port, ca), tmp_path / "canary"
    canary.mkdir()
    with _superlink(field, flwr):
        for party in field.users[:2]:
            done, text = flwr("supernode", "register", str(field.folder / party / "node-key.pub"))
            assert done, text
            field.node(party)
        done, text = flwr.run_app(canary)
        assert done, text
        field.wait_for((canary / "replies.json").exists, 200)
    replies = json.loads((canary / "replies.json").read_text())
    refusal = "this node runs no apps"
    for kind in ("train", "query", "query.steal"):
        assert len(replies[kind]) == 2
        assert all(refusal in text for text in replies[kind]), replies
    assert [path.name for path in canary.iterdir()] == ["replies.json"]
    for party in field.users[:2]:
        assert "refused what the operator sent" in (field.folder / f"{party}.log").read_text()


@contextmanager
def _superlink(field: Any, flwr: Flwr) -> Iterator[None]:
    tls = field.folder / "tls"
    command = [str(Path(sys.executable).parent / "flower-superlink"), "--enable-supernode-auth"]
    command += ["--ssl-ca-certfile", str(tls / "ca.pem"), "--ssl-certfile", str(tls / "server.pem")]
    command += ["--ssl-keyfile", str(tls / "server.key"), "--host", "127.0.0.1"]
    command += ["--port", str(field.port), "--disable-runtime-dependency-installation"]
    with (
        (field.folder / "superlink.log").open("wb") as log,
        subprocess.Popen(
            command, env=flwr.environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            _wait_for_port(field.port)
            yield
        finally:
            os.killpg(process.pid, 15)
            process.wait(20)


def _wait_for_port(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise TimeoutError("SuperLink must listen")


def _paths() -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Flower's own, of its command line's libraries
        from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    return {path for _, path in PROTOBUF_REQUEST_TYPES} | {"/docs", "/openapi.json", "/health"}


def _statuses(port: int, ca: Path) -> dict[int, int]:
    """Status -> how many of Flower's calls have it, unsigned."""
    context = ssl.create_default_context(cafile=str(ca))
    found: dict[int, int] = {}
    for path in sorted(_paths()):
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}{path}",
            data=b"",
            headers={"content-type": "application/x-protobuf"},
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as response:
                status = response.status
        except urllib.error.HTTPError as error:
            status = error.code
        found[status] = found.get(status, 0) + 1
    return found


IDLE, SLOW = 500, 60


def test_hundreds_of_idle_and_slow_strangers_cost_no_user_and_little_time(
    make_field: Callable[..., Any],
) -> None:
    """The whole session of five users, by the clock, with strangers there from before it."""
    quiet, crowded = (_session(make_field(), strangers) for strangers in (0, IDLE + SLOW))
    print(f"{quiet:.1f} s alone, {crowded:.1f} s with {IDLE + SLOW} strangers")
    assert crowded <= 2 * quiet


def _session(field: Any, strangers: int) -> float:
    operator = field.operator(seconds=60)
    field.wait_for((field.folder / "ready").exists)
    script = str(Path(__file__).with_name("idlers.py"))
    command = [sys.executable, script, str(field.port), str(IDLE), str(SLOW)]
    crowd = subprocess.Popen(command, stdout=subprocess.PIPE, text=True) if strangers else None
    try:
        if crowd is not None:
            assert crowd.stdout is not None
            assert crowd.stdout.readline() == "ready\n"
        start = time.monotonic()
        nodes = [field.node(party) for party in field.parties]
        assert operator.wait(120) == 0, field.logs()
        seconds = time.monotonic() - start
        assert [node.wait(30) for node in nodes] == [0] * len(nodes)
        assert field.opened() == list(range(5))  # and the sum is checked to be the users'
        log = (field.folder / "run" / "hub.log").read_text()
        assert "Traceback" not in log
        assert len(log) < 10_000
        return seconds
    finally:
        if crowd is not None:
            crowd.kill()
            crowd.communicate()


def test_nobody_else_knows_the_port(make_field: Callable[..., Any]) -> None:
    """The hub listens on the public port alone: no loopback interface is left to talk to."""
    field = make_field()
    field.operator(seconds=300)
    field.wait_for((field.folder / "ready").exists)
    listening = {
        int(line.split()[1].rpartition(":")[2], 16)
        for pid in _hubs(field)
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
        if line.split()[3] == "0A" and line.split()[9] in _sockets(pid)
    }
    assert listening == {field.port}


def _hubs(field: Any) -> list[int]:
    ends = tuple(f" {process.pid}" for process in field.running)
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().rstrip()
        except OSError:
            continue
        if line.endswith(ends):
            found.append(int(entry.name))
    return found + [process.pid for process in field.running]


def _sockets(pid: int) -> set[str]:
    links = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    return {link[8:-1] for link in links if link.startswith("socket:[")}
