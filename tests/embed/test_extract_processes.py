"""Extractions in processes of their own: killed at any moment, and measured."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from embed.engines import refusal
from pretrain.intake.archive import open_npz
from tests.embed.conftest import Slow, embed

ROOT = Path(__file__).parents[2]

START = """
import sys, time
from pathlib import Path
import torch
from embed.partial import ResumableExtraction
from pretrain import build_encoder
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.embed.conftest import Slow, embed
images, out = open_npz(Path(sys.argv[1])), Path(sys.argv[2])
"""
CHILD = START + "embed(images, Slow(sys.argv[3]), out, batch_size=2, shard_rows=4)"


def command(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-c", program, *map(str, arguments)]


def assert_same_files(one: Path, other: Path) -> None:
    names = {path.name for path in one.iterdir()}
    assert names == {path.name for path in other.iterdir()}
    assert all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_kills_change_nothing(tmp_path: Path, archive: Path, kills: int) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    embed(open_npz(archive), Slow(), tmp_path / "whole", batch_size=2, shard_rows=4)
    moments = random.Random(0)
    finished: set[int] = set()
    marks = out.with_name("out.partial") / "finished"
    for _ in range(kills):
        log.write_text("")
        child = subprocess.Popen(command(CHILD, archive, out, log), cwd=ROOT)
        while child.poll() is None and not log.read_text():
            time.sleep(0.01)
        time.sleep(moments.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        child.wait()
        computed = {int(row) // 4 for row in log.read_text().split()}
        assert not computed & finished
        finished = {int(mark.name) for mark in marks.iterdir()}
    assert 0 < len(finished) < 25
    log.write_text("")
    subprocess.run(command(CHILD, archive, out, log), cwd=ROOT, check=True)
    last = [int(row) for row in log.read_text().split()]
    assert sorted(last) == [row for row in range(100) if row // 4 not in finished]
    assert_same_files(out, tmp_path / "whole")


BY_ENGINE = (
    START
    + """
write = ResumableExtraction.write
def slowly(*arguments):
    write(*arguments)
    time.sleep(0.2)

ResumableExtraction.write = slowly
embed(images, build_encoder(sys.argv[3]), out, preprocess=Preprocess(image_size=16), batch_size=3,
      shard_rows=4, engine=sys.argv[4])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_kills_change_nothing_with_any_engine(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str
) -> None:
    if engine == "openvino" and (why := refusal("auto")):
        pytest.skip(why)
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    out, moments, kept = tmp_path / "out", random.Random(1), 0
    marks = out.with_name("out.partial") / "finished"
    for kill in range(4):
        # The first are killed while they import and convert, the others once they have gone on.
        words = command(BY_ENGINE, archive, out, checkpoint, engine)
        child = subprocess.Popen(words, cwd=ROOT, env=environment)
        if kill < 2:
            time.sleep(moments.uniform(1.0, 4.0))
        else:
            while child.poll() is None and (not marks.exists() or _count(marks) <= kept):
                time.sleep(0.01)
            time.sleep(moments.uniform(0.0, 0.4))
        child.send_signal(signal.SIGKILL)
        child.wait()
        kept = _count(marks) if marks.exists() else 0
    assert 0 < kept < 25
    whole = tmp_path / "whole"
    for place, named in ((out, "auto"), (whole, engine)):
        words = command(BY_ENGINE, archive, place, checkpoint, named)
        subprocess.run(words, cwd=ROOT, env=environment, check=True)
    assert_same_files(out, whole)
    assert f'"engine": "{engine}"' in (out / "meta.json").read_text()


def _count(marks: Path) -> int:
    return len([mark for mark in marks.iterdir() if mark.name.isdigit()])


MEMORY = (
    START
    + """
import resource

class Wide(torch.nn.Module):
    embedding_dim = 2048
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2048)
    def forward(self, images):
        return self.layer(images.mean((2, 3)))

embed(images, Wide(), out, batch_size=256, shard_rows=1024)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
)


@pytest.mark.slow
def test_memory_does_not_follow_the_number_of_images(tmp_path: Path) -> None:
    peaks = []
    for rows in (4_000, 40_000):
        path = tmp_path / f"{rows}.npz"
        np.savez(
            path,
            x_train=np.zeros((rows, 32, 32, 3), np.uint8),
            y_train=np.zeros(rows, np.int64),
        )
        words = command(MEMORY, path, tmp_path / f"out{rows}")
        done = subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    print(f"peak MiB at 4,000 and 40,000 images: {peaks}")  # 31 and 313 MiB of embeddings
    assert peaks[1] < peaks[0] + 32
