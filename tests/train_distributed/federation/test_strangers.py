"""Strangers with host, port and CA reach nothing, and neither they nor a party that floods the
service keep a session waiting. Real processes and TLS on loopback."""

import os
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.slow
IDLE, SLOW = 500, 60
MOST_MEMORY = 300_000_000  # bytes of the operator's process
MOST_LOG = 10_000  # bytes


def test_a_stranger_reaches_nothing(make_field: Callable[..., Any]) -> None:
    field = make_field(seconds=300)
    operator = field.operator()
    for party in field.users[:2]:
        field.node(party)
    field.wait_for(lambda: len(field.status().get("present", [])) == 2)
    digest = field.federation.digest.hex()
    tls = ssl.create_default_context(cafile=str(field.folder / "tls" / "server.pem"))
    paths = [
        *("/", "/docs", "/openapi.json", f"/relay/{digest}", f"/relay/{digest}/"),
        *(f"/relay/{'0' * 64}", f"/tasks/{digest}/reports", f"/invitations/{digest}/private.json"),
    ]
    with httpx.Client(base_url=f"https://127.0.0.1:{field.port}", verify=tls, timeout=30) as http:
        found = {path: http.post(path).status_code for path in paths}
    assert found.pop(f"/relay/{digest}") == 401
    assert set(found.values()) <= {307, 404}
    assert operator.poll() is None
    assert len(field.status()["present"]) == 2
    for party in field.users[2:]:
        field.node(party)
    assert operator.wait(120) == 0
    assert field.opened() == list(range(5))


@pytest.mark.parametrize("crowd", ["idlers", "flood"])
def test_a_crowd_costs_no_user_and_little_time(crowd: str, make_field: Callable[..., Any]) -> None:
    """The session by the clock, once the users are there, with the crowd there from before it."""
    seconds = 15 if crowd == "flood" else 60  # it waits for who floods
    quiet, crowded = (
        _session(make_field(minimum=4, seconds=seconds), crowd, there) for there in (False, True)
    )
    print(f"{quiet:.1f} s alone, {crowded:.1f} s with {crowd}")
    assert crowded <= quiet + 2


def _session(field: Any, crowd: str, there: bool) -> float:
    flooding, at = crowd == "flood", str(field.port)
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    given = [str(field.folder), "user4", at] if flooding else [at, str(IDLE), str(SLOW)]
    strangers = None
    if there:
        command = [sys.executable, str(Path(__file__).with_name("crowds.py")), crowd, *given]
        strangers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    users = field.users[:4] if flooding else field.users
    try:
        if strangers is not None:
            assert strangers.stdout is not None
            assert strangers.stdout.readline() == "ready\n"
        nodes = [field.node(party) for party in users]
        field.wait_for(lambda: field.status().get("stage", "gather") != "gather")
        start, peak = time.monotonic(), 0
        while operator.poll() is None:
            peak = max(peak, _memory(operator.pid))
            time.sleep(0.05)
        assert operator.returncode == 0, field.logs()
        seconds = time.monotonic() - start
        assert [node.wait(30) for node in nodes] == [0] * len(nodes)
        assert field.opened() == list(range(len(users)))  # and the sum is checked to be the users'
        assert 0 < peak < MOST_MEMORY
        log = (field.folder / "run" / "events.jsonl").read_text()
        assert len(log) < MOST_LOG, log
        return seconds
    finally:
        if strangers is not None:
            strangers.kill()
            strangers.communicate()


def _memory(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) << 10


def test_one_port_is_open(make_field: Callable[..., Any]) -> None:
    """The operator listens on the public port alone: no loopback interface is left to talk to."""
    field = make_field(seconds=300)
    operator = field.operator()
    field.wait_for((field.folder / "ready").exists)
    links = {os.readlink(fd) for fd in Path(f"/proc/{operator.pid}/fd").iterdir()}
    lines = Path(f"/proc/{operator.pid}/net/tcp").read_text().splitlines()[1:]
    listening = {
        int(line.split()[1].rpartition(":")[2], 16)
        for line in lines
        if line.split()[3] == "0A" and f"socket:[{line.split()[9]}]" in links
    }
    assert listening == {field.port}
