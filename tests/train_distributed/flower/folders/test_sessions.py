"""The whole flow as people run it: commands as processes, TLS, three users, one model.

Each test takes a minute or two on two busy cores.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from train_distributed.flower.commands import Renew
from train_distributed.flower.processes import free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("flwr") is None, reason="needs the flower extra"),
]
ROOT = Path(__file__).parents[4]
SECONDS = 240


def _federation(home: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "train_distributed", "federation"]
    return subprocess.Popen(
        [*command, *arguments],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _party(home: Path, name: str, *more: str) -> subprocess.Popen[str]:
    rows = [] if name.startswith("server") else ["--embeddings", f"{name}/embeddings"]
    invitation = ["--invitation", "fed/invitation"]
    return _federation(home, "start", "--folder", name, *invitation, *rows, *more)


def _operator(home: Path, *more: str) -> subprocess.Popen[str]:
    return _federation(home, "start", "--folder", "fed", "--host", "127.0.0.1", *more)


@pytest.mark.parametrize("servers", [0, 1])
def test_from_join_to_model(servers: int, initiated: Callable[..., Path]) -> None:
    home = initiated(users=3, servers=servers, port=free_port())
    names = ["user0", "user1", "user2", *(["server1"] if servers else [])]
    parties = [_party(home, name) for name in names]
    operator = _operator(home, "--timeout", "120", "--out", "model")
    said, _ = operator.communicate(timeout=SECONDS)
    assert operator.returncode == 0, said
    assert "2147483649" not in said
    for party in parties:
        said, _ = party.communicate(timeout=SECONDS)
        assert party.returncode == 0, said
        assert "over: " in said
    report = json.loads((home / "model" / "report.json").read_text())
    assert report["surviving_users"] == [f"user {i} (hospital-{i})" for i in range(3)]
    assert report["protocol"] == ("shares" if servers else "secagg")
    assert report["bytes_per_user"] > 8 * 21
    assert report["suitable_for_release"]
    again = _party(home, "user0", "--patience", "15")
    second = _operator(home, "--timeout", "10")
    said, _ = second.communicate(timeout=SECONDS)
    assert second.returncode == 2, said
    assert "users present must be >= 3" in said
    again.communicate(timeout=SECONDS)


def test_a_party_is_told_why_it_is_not_let_in(initiated: Callable[..., Path]) -> None:
    home = initiated(users=3, port=free_port())
    shutil.copytree(home / "fed" / "invitation", home / "old")
    Renew(home / "fed", authority=True).run()
    operator = _operator(home, "--timeout", "40")
    stale = _party(home, "user0", "--invitation", "old", "--patience", "30")
    said, _ = stale.communicate(timeout=SECONDS)
    assert stale.returncode == 1, said
    assert "certificate is not this ca.pem's" in said
    operator.communicate(timeout=SECONDS)
    assert operator.returncode == 2
