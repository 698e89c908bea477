"""The whole flow as people run it: commands as processes, TLS, three users, one model.

Each test takes a minute or two on two busy cores.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.train_distributed.federation.folders.engine import digest_of
from tests.train_distributed.federation.folders.lines import terminating
from train_distributed.federation.documents.certificates import write_certificate
from train_distributed.ledger.ledger import Ledger

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[4]
SECONDS = 240


class Commands:
    """Commands as processes, all of which end with the test."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._running: list[subprocess.Popen[str]] = []
        self.environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def party(self, name: str, *more: str) -> subprocess.Popen[str]:
        rows = [] if name.startswith("server") else ["--embeddings", f"{name}/embeddings"]
        invitation = [] if "--invitation" in more else ["--invitation", "fed/invitation"]
        accept = ["--accept", digest_of(self._home)] if rows else []
        return self._start("--folder", name, *invitation, *rows, *accept, *more)

    def operator(self, *more: str) -> subprocess.Popen[str]:
        return self._start("--folder", "fed", "--host", "127.0.0.1", *more)

    def end(self) -> None:
        for process in self._running:
            process.kill()
            process.communicate()

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-m", "train_distributed", "federation", "start"]
        process = subprocess.Popen(
            [*command, *arguments],
            cwd=self._home,
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._running.append(process)
        return process


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    found = Commands(tmp_path)
    yield found
    found.end()


def _ended(process: subprocess.Popen[str], code: int) -> str:
    said, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == code, said
    return said


def test_from_join_to_model(initiated: Callable[..., Path], commands: Commands) -> None:
    home = initiated(users=3, port=free_port())
    parties = [commands.party(name) for name in ("user0", "user1", "user2")]
    said = _ended(commands.operator("--out", "model"), 0)
    assert "2147483649" not in said
    for party in parties:
        assert "over: " in _ended(party, 0)
    report = json.loads((home / "model" / "report.json").read_text())
    assert report["surviving_users"] == [f"user {i} (hospital-{i})" for i in range(3)]
    assert report["protocol"] == "secagg"
    assert report["bytes_per_user"] > 8 * 21
    assert report["suitable_for_release"]
    said = _ended(commands.party("user0", "--patience", "30"), 2)
    assert "sessions must be <= 1, got one more: all that were agreed are used up" in said


def test_two_sums_from_join_to_model(initiated: Callable[..., Path], commands: Commands) -> None:
    """An operator that is killed on the way is started again; one entry counts both sums."""
    two = {"method": "discriminant", "options": {"sums": 2}}
    home = initiated(users=3, port=free_port(), **two)
    parties = [commands.party(name) for name in ("user0", "user1", "user2")]
    operator = commands.operator("--out", "model")
    assert operator.stdout is not None
    for line in operator.stdout:
        if "the second sum" in line:
            break
    operator.kill()
    operator.wait()
    _ended(commands.operator("--out", "model"), 0)
    for party in parties:
        assert "over: 1 of 1 sessions" in _ended(party, 0)
    report = json.loads((home / "model" / "report.json").read_text())
    assert report["rounds"] == 2
    assert report["suitable_for_release"]
    for ledger in (home / "fed" / "operator.ledger", home / "user0" / "embeddings.ledger"):
        total = Ledger.open(ledger).total()
        assert total.epsilon(1e-5) == pytest.approx(5.0, rel=1e-6)


def test_nobody_between_with_another_certificate_is_believed(
    initiated: Callable[..., Path], commands: Commands
) -> None:
    home, own = initiated(users=3, port=free_port(), deadlines=("come=20",)), free_port()
    (other := home / "other").mkdir()
    write_certificate(other, ["127.0.0.1"])
    operator = commands.operator("--port", str(own))
    with terminating(other, own) as between:
        at = ("--operator", f"127.0.0.1:{between}", "--patience", "10")
        said = _ended(commands.party("user0", *at), 1)
    assert "is not the one that was agreed on" in said
    assert "users present must be >= 3, got 0" in _ended(operator, 2)


def test_behind_a_proxy_that_has_tls(initiated: Callable[..., Path], commands: Commands) -> None:
    port, own = free_port(), free_port()
    home = initiated(users=3, port=port, behind_proxy=True)
    (tls := home / "proxy").mkdir()
    write_certificate(tls, ["127.0.0.1"])
    commands.environment["SSL_CERT_FILE"] = str(tls / "server.pem")
    with terminating(tls, own, port):
        parties = [commands.party(name) for name in ("user0", "user1", "user2")]
        said = _ended(commands.operator("--out", "model", "--port", str(own)), 0)
        for party in parties:
            assert "over: " in _ended(party, 0)
    assert "plain HTTP on 127.0.0.1: your reverse proxy has TLS by a public authority" in said
    assert json.loads((home / "model" / "report.json").read_text())["survivors"] == 3
