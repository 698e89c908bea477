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

from embed.engines.compiled import COMPILERS, refusal

ROOT = Path(__file__).parents[2]

CHILD = """
import sys, time
from pathlib import Path
import torch
from embed.extract import extract
from embed.options import ExtractOptions
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess
from tests.embed.conftest import rows_in

class Slow(torch.nn.Module):
    embedding_dim = 3
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.1, 1.7, 9).view(3, 3))
    def forward(self, images):
        rows = rows_in(images)
        with open(sys.argv[3], "a") as log:
            log.write("".join(f"{row}\\n" for row in rows))
        time.sleep(0.04)
        return images.mean((2, 3)) @ self.weight

extract(open_npz(Path(sys.argv[1])), Slow(), Path(sys.argv[2]), encoder_name="slow",
        preprocess=Preprocess(), options=ExtractOptions(batch_size=2, shard_rows=4))
"""


@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_kills_change_nothing(tmp_path: Path, archive: Path, kills: int) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    whole = [sys.executable, "-c", CHILD, str(archive), str(tmp_path / "whole"), os.devnull]
    uninterrupted = subprocess.Popen(whole, cwd=ROOT)
    moments = random.Random(0)
    finished: set[int] = set()
    marks = out.with_name("out.partial") / "finished"
    for _ in range(kills):
        log.write_text("")
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(archive), str(out), str(log)], cwd=ROOT
        )
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
    subprocess.run(
        [sys.executable, "-c", CHILD, str(archive), str(out), str(log)], cwd=ROOT, check=True
    )
    last = [int(row) for row in log.read_text().split()]
    assert sorted(last) == [row for row in range(100) if row // 4 not in finished]
    assert uninterrupted.wait() == 0
    names = {path.name for path in out.iterdir()}
    assert names == {path.name for path in (tmp_path / "whole").iterdir()}
    assert all((out / n).read_bytes() == (tmp_path / "whole" / n).read_bytes() for n in names)


BY_ENGINE = """
import sys, time
from pathlib import Path
from embed.extract import extract
from embed.options import ExtractOptions
from embed.partial import Partial
from pretrain import build_encoder
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess

write = Partial.write
def slowly(*arguments):
    write(*arguments)
    time.sleep(0.2)

Partial.write = slowly
extract(open_npz(Path(sys.argv[1])), build_encoder(sys.argv[2]), Path(sys.argv[3]),
        encoder_name="small", preprocess=Preprocess(image_size=16),
        options=ExtractOptions(batch_size=3, shard_rows=4, engine=sys.argv[4]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["openvino", "onnxruntime", "torch"])
def test_kills_change_nothing_with_any_engine(
    tmp_path: Path, archive: Path, checkpoint: Path, engine: str
) -> None:
    if engine in COMPILERS and (why := refusal(engine, "auto")):
        pytest.skip(why)
    program = [sys.executable, "-c", BY_ENGINE, str(archive), str(checkpoint)]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    out, moments, kept = tmp_path / "out", random.Random(1), 0
    marks = out.with_name("out.partial") / "finished"
    for kill in range(4):
        # The first are killed while they import and convert, the others once they have gone on.
        child = subprocess.Popen([*program, str(out), engine], cwd=ROOT, env=environment)
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
    subprocess.run([*program, str(out), "auto"], cwd=ROOT, env=environment, check=True)
    whole = tmp_path / "whole"
    subprocess.run([*program, str(whole), engine], cwd=ROOT, env=environment, check=True)
    names = {path.name for path in out.iterdir()}
    assert names == {path.name for path in whole.iterdir()}
    assert all((out / n).read_bytes() == (whole / n).read_bytes() for n in names)
    assert f'"engine": "{engine}"' in (out / "meta.json").read_text()


def _count(marks: Path) -> int:
    return len([mark for mark in marks.iterdir() if mark.name.isdigit()])


MEMORY = """
import resource, sys
from pathlib import Path
import torch
from embed.extract import extract
from embed.options import ExtractOptions
from pretrain.intake.archive import open_npz
from pretrain.preprocess import Preprocess

class Wide(torch.nn.Module):
    embedding_dim = 2048
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2048)
    def forward(self, images):
        return self.layer(images.mean((2, 3)))

extract(open_npz(Path(sys.argv[1])), Wide(), Path(sys.argv[2]), encoder_name="wide",
        preprocess=Preprocess(), options=ExtractOptions(batch_size=256, shard_rows=1024))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


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
        command = [sys.executable, "-c", MEMORY, str(path), str(tmp_path / f"out{rows}")]
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout))
    print(f"peak MiB at 4,000 and 40,000 images: {peaks}")  # 31 and 313 MiB of embeddings
    assert peaks[1] < peaks[0] + 32
