import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from pretrain import build_encoder
from pretrain.commands import Convert, Probe, Simclr
from pretrain.resnet import ResNetConfig
from pretrain.simclr import AugmentConfig, SimCLRConfig
from pretrain.simclr_v2 import read_tensorflow
from tests.pretrain.test_networks import variable_shapes

ROOT = Path(__file__).parents[2]
RECIPE = SimCLRConfig(
    encoder=ResNetConfig((4, 8), (1, 1)),
    augment=AugmentConfig(size=8),
    epochs=2,
    batch_size=16,
    hidden=8,
    projected=4,
)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    labels = np.arange(96) % 2
    noise = np.random.default_rng(0).integers(0, 100, (96, 8, 8, 3), np.uint8)
    pixels = (noise + 100 * labels[:, None, None, None]).astype(np.uint8)
    held = {"x_train": pixels[:64], "y_train": labels[:64]}
    np.savez(tmp_path / "images.npz", **held, x_test=pixels[64:], y_test=labels[64:])
    return tmp_path / "images.npz"


def test_simclr_writes_an_encoder_and_probe_its_accuracies(tmp_path: Path, archive: Path) -> None:
    out = tmp_path / "out"
    Simclr(data=(str(archive),), out=out, config=RECIPE, monitor=str(archive)).run()
    written = sorted(p.name for p in out.iterdir())
    assert written == ["encoder.safetensors", "history.png", "report.json"]
    report = json.loads((out / "report.json").read_text())
    assert report["images"] == 64
    assert [set(entry) for entry in report["history"]] == [{"epoch", "loss", "knn"}] * 2
    encoder = str(out / "encoder.safetensors")
    assert build_encoder(encoder).embedding_dim == 8
    assert not (tmp_path / "out.partial").exists()
    with pytest.raises(FileExistsError):
        Simclr(data=(str(archive),), out=out, config=RECIPE).run()
    Probe(data=str(archive), encoder=encoder, out=tmp_path / "probe").run()
    accuracy = json.loads((tmp_path / "probe" / "report.json").read_text())["accuracy"]
    assert set(accuracy) == {"knn", "linear"}
    assert accuracy["linear"] > 0.9  # brightness tells the classes apart


def arguments(archive: Path, out: Path, epochs: int = 30) -> list[str]:
    options = ["--data", str(archive), "--out", str(out)]
    options += ["--device", "cpu", "--config.encoder.widths", "4", "8"]
    options += ["--config.encoder.blocks", "1", "1", "--config.augment.size", "8"]
    options += ["--config.epochs", str(epochs), "--config.batch-size", "16"]
    return ["-m", "pretrain", "simclr", *options]


@pytest.mark.slow
def test_a_killed_command_resumes_to_the_same_weights(tmp_path: Path, archive: Path) -> None:
    whole = subprocess.Popen([sys.executable, *arguments(archive, tmp_path / "whole")], cwd=ROOT)
    out = tmp_path / "out"
    checkpoint = tmp_path / "out.partial" / "checkpoint.pt"
    command = [sys.executable, *arguments(archive, out)]
    child = subprocess.Popen(command, cwd=ROOT)
    while child.poll() is None and not checkpoint.exists():
        time.sleep(0.02)
    time.sleep(0.3)
    child.send_signal(signal.SIGKILL)
    child.wait()
    assert not out.exists()
    subprocess.run(command, cwd=ROOT, check=True)
    assert whole.wait() == 0
    resumed, expected = (load_file(d / "encoder.safetensors") for d in (out, tmp_path / "whole"))
    assert all(torch.equal(resumed[name], expected[name]) for name in expected)


@pytest.mark.slow
def test_two_processes_write_one_encoder_with_a_falling_loss(tmp_path: Path, archive: Path) -> None:
    out = tmp_path / "encoder"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    subprocess.run([*launch, *arguments(archive, out, 2)], cwd=ROOT, check=True, timeout=300)
    history = json.loads((out / "report.json").read_text())["history"]
    assert len(history) == 2
    assert history[1]["loss"] < history[0]["loss"]
    assert build_encoder(str(out / "encoder.safetensors")).embedding_dim == 8
    assert not (tmp_path / "encoder.partial").exists()


def test_convert_without_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"TensorFlow installed|must be a TensorFlow checkpoint"):
        Convert(checkpoint=tmp_path / "none", arch="r50_1x_sk0", out=tmp_path / "out").run()
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # TensorFlow's own
def test_a_real_tensorflow_checkpoint_is_read(tmp_path: Path) -> None:
    tensorflow: Any = pytest.importorskip("tensorflow")
    shapes = variable_shapes("r50_1x_sk0") | {
        "head_supervised/linear_layer/dense/kernel": (4, 2),
        "base_model/conv2d/kernel/Momentum": (7, 7, 3, 64),
        "global_step": (),
    }
    rng = np.random.default_rng(0)
    values = {name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()}
    v1 = tensorflow.compat.v1
    with tensorflow.Graph().as_default(), v1.Session() as session:
        variables = [v1.get_variable(name, initializer=value) for name, value in values.items()]
        session.run(v1.global_variables_initializer())
        prefix = Path(v1.train.Saver(variables).save(session, str(tmp_path / "model.ckpt")))
    read = read_tensorflow(prefix)
    assert read.keys() == variable_shapes("r50_1x_sk0").keys()
    assert all(np.array_equal(read[name], values[name]) for name in read)
    Convert(checkpoint=prefix, arch="r50_1x_sk0", out=tmp_path / "out").run()
    weights = str(tmp_path / "out" / "weights.safetensors")
    encoder = build_encoder("simclrv2:r50_1x_sk0", weights=weights)
    stem = encoder.state_dict()["stem.0.weight"].permute(2, 3, 1, 0).numpy()
    assert np.array_equal(stem, values["base_model/conv2d/kernel"])
