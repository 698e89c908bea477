"""Engine and ONNX Runtime with an empty home: nothing written, nobody asked."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embed.engines import refusal
from tests.train_distributed.sized_pictures import tiny_encoder

ROOT = Path(__file__).parents[4]
WORK = """
import sys, time
from pathlib import Path
import torch
from embed.engines import traced
from tests.benchmarks.run_by import RunBy
from train_distributed.released.export import run_onnx, save_onnx

class Classifier(torch.nn.Module):
    def forward(self, pixels):
        shares = pixels.float().mean((2, 3)).softmax(1)
        return shares.argmax(1), shares

RunBy(data="images.npz", encoder="encoder.safetensors", out=Path("set"), engine="openvino").run()
pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
save_onnx(traced(Classifier(), (pixels,)), {}, Path("model.onnx"))
print(run_onnx(Path("model.onnx"))(pixels.numpy())[0].shape)
time.sleep(float(sys.argv[1]))
assert not [name for name in sys.modules if name.startswith("openvino_telemetry.")]
"""
# A network that ends at this machine, whose name server writes down what it is asked.
ALONE = """
import fcntl, os, socket, struct, subprocess, sys, threading
with socket.socket() as any:
    fcntl.ioctl(any, 0x8914, struct.pack("16sh22x", b"lo", 1))  # SIOCSIFFLAGS: up
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
def listen():
    while True:
        print("asked", server.recv(512), flush=True)
threading.Thread(target=listen, daemon=True).start()
open("resolv.conf", "w").write("nameserver 127.0.0.1\\n")
subprocess.run(["mount", "--bind", "resolv.conf", "/etc/resolv.conf"], check=True)
subprocess.run(["getent", "hosts", "told.example"], timeout=60, env={"PATH": os.environ["PATH"],
    "RES_OPTIONS": "timeout:1 attempts:1"})
print("listening", flush=True)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--mount")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    if why := refusal("float32"):
        pytest.skip(why)
    pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 8), np.uint8)
    np.savez(tmp_path / "images.npz", x_train=pixels, y_train=np.arange(9) % 3)
    tiny_encoder(tmp_path / "encoder.safetensors")
    (tmp_path / "home").mkdir()
    return tmp_path


def done(folder: Path, *command: str) -> tuple[str, list[str]]:
    """Output of a program of a newcomer, and what it left in the home."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder / "home")}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    own = folder / "home" / ".cache" / "blind-averaging" / "networks"  # converted networks
    left = {*(folder / "home").rglob("*")} - {own, *own.parents, *own.rglob("*")}
    return ran.stdout, sorted(map(str, left))


def test_nothing_is_written_into_the_home(work: Path) -> None:
    said, left = done(work, sys.executable, "-c", WORK, "0")
    assert said.endswith("(2,)\n")
    assert not left


@pytest.mark.slow
def test_nobody_is_asked_for_a_minute(work: Path) -> None:
    if subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs unshare, and the right to a network of one's own")
    child = [sys.executable, "-c", WORK, "60"]
    said, left = done(work, *UNSHARE, sys.executable, "-c", ALONE, *child)
    before, _, after = said.partition("listening\n")
    assert "told" in before  # questions are seen
    assert after.endswith("(2,)\n")
    assert "asked" not in after
    assert not left
