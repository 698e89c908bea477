"""Two processes under torchrun train one encoder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pretrain import build_encoder

ARGUMENTS = [
    *("--config.epochs", "2", "--config.batch-size", "16", "--config.augment.size", "16"),
    *("--config.encoder.widths", "8", "16", "--config.encoder.blocks", "1", "1"),
]


@pytest.mark.slow
def test_two_processes_write_one_encoder_with_a_falling_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (64, 16, 16, 3), dtype=np.uint8)
    np.savez(tmp_path / "tiny.npz", x_train=pixels, y_train=rng.integers(0, 4, 64))
    out = tmp_path / "encoder"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    train = ["-m", "pretrain", "simclr", "--data", str(tmp_path / "tiny.npz"), "--out", str(out)]
    subprocess.run([*launch, *train, *ARGUMENTS], check=True, timeout=300)
    history = json.loads((out / "report.json").read_text())["history"]
    assert len(history) == 2
    assert history[1]["loss"] < history[0]["loss"]
    assert build_encoder(str(out / "encoder.safetensors")).embedding_dim == 16
    assert not (tmp_path / "encoder.partial").exists()
