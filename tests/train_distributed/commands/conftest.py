"""Command lines of the program `blind-averaging`, in this process."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.command_lines import Said, typed
from train_distributed.__main__ import main
from train_distributed.ledger.ledger import Ledger


@pytest.fixture
def say(monkeypatch, capsys, tmp_path) -> Iterator[Callable[..., Said]]:
    """Runs `blind-averaging` in an empty directory: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    with typed("blind-averaging", main, monkeypatch, capsys) as run:
        yield run


@pytest.fixture
def sets(tmp_path) -> tuple[str, str]:
    """Directories of a private and a public embedding set."""
    rng = np.random.default_rng(0)
    labels = np.arange(120) % 3
    x = (2 * np.eye(3, 5)[labels] + 0.3 * rng.standard_normal((120, 5))).astype(np.float32)
    users, split = np.arange(120) % 8, np.repeat([0, 1], [90, 30]).astype(np.uint8)
    meta = {"class_names": ["a", "b", "c"]}
    private = EmbeddingSet(embeddings=x, labels=labels, users=users, split=split, meta=meta)
    private.save(tmp_path / "private")
    EmbeddingSet(embeddings=x[::-1] + 0.01, labels=labels).save(tmp_path / "public")
    return str(tmp_path / "private"), str(tmp_path / "public")


@pytest.fixture
def no_pictures(monkeypatch) -> None:
    """They take longer than all the rest."""
    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", lambda *_: None)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte, which a release and its pictures do not fit."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def run(call, sets, no_pictures):
    """Runs class sums on the private set: (exit code, stdout, stderr)."""
    common = [
        "run",
        "--embeddings",
        sets[0],
        "--public",
        sets[1],
        "--method",
        "discriminant",
        "--sums",
        "1",
    ]
    return lambda *more: call(*common, *more)


@pytest.fixture
def ledger(tmp_path) -> Ledger:
    """The one beside the private set."""
    return Ledger(tmp_path / "private.ledger")
