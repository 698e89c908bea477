"""ONNX and torch.export files against `predict`, and that their runtimes tell nobody."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from embed.engines import refusal
from pretrain.encoder import build_encoder, encoder_hash
from pretrain.encoders.base import Concat
from pretrain.intake.decode import squared
from pretrain.preprocess import Preprocess
from pretrain.resnet import ResNetConfig, SmallResNet
from tests.train_distributed.sized_pictures import tiny_encoder
from train_distributed import Privacy, Release, release
from train_distributed.released import export

NAMES = ("blue", "green", "red")
PARITY, DARK = 1e-5, 0.3
KINDS = {"onnx": (export.save_onnx, export.run_onnx), "pt2": (export.save_torch, export.run_torch)}


def pictures(rows: int, size: tuple[int, int], seed: int, light: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    own = 180 * np.eye(3)[np.arange(rows) % 3][:, :, None, None] + 40
    low = torch.from_numpy(rng.normal(0, 60, (rows, 3, 4, 4)) + own)
    smooth = functional.interpolate(low, size=size, mode="bilinear").numpy()
    noisy = smooth + rng.normal(0, 15, (rows, 3, *size))
    return np.clip(light * noisy, 0, 255).astype(np.uint8)


def learned(encoder, preprocess: Preprocess, size=(20, 17), light: float = 1.0) -> Release:
    """A private model of pictures of this light, with its transform fitted to others."""
    made: dict[str, Any] = {"encoder": "test", "weights": "random", "preprocess": preprocess}
    known = Encoding(encoder_hash=encoder_hash(encoder), **made).to_json()
    meta = {"class_names": list(NAMES), "image_shape": [3, *size]} | known
    labels, sets = np.arange(120) % 3, []
    for seed, own in ((0, light), (1, 1.0)):
        parts = torch.from_numpy(pictures(120, size, seed, own)).split(30)
        with torch.inference_mode():
            rows = torch.cat([encoder(preprocess(part)) for part in parts]).numpy()
        sets.append(EmbeddingSet(embeddings=rows, labels=labels, users=labels * 0, meta=meta))
    transform = PublicTransform.fit(sets[1], components=8)
    given: dict[str, Any] = {"sums": 1 if light == 1.0 else 2, "transform": transform}
    given |= {"noise": "float", "generator": torch.Generator().manual_seed(0)}
    return release(sets[0], "discriminant", Privacy(20.0, 1e-5), **given)


def save(kind: str, released: Release, encoder, size: tuple[int, int], folder: Path) -> Path:
    path = folder / f"model.{kind}"
    KINDS[kind][0](export.trace(released, encoder, size), export.described(released, size), path)
    return path


def check(path: Path, released: Release, encoder, size: tuple[int, int]) -> None:
    """Asserts that a file agrees with `predict`, in batches of several sizes."""
    program = KINDS[path.suffix[1:]][1](path)
    shown = [pictures(30, size, 7, light) for light in (1.0, DARK)]
    pixels = np.concatenate([*shown, export.some_pictures(size)])
    for n in (1, 2, len(pixels)):
        difference, classes = export.largest_difference(released, encoder, program, pixels[:n])
        assert difference <= PARITY
        assert classes == 0


@pytest.fixture(scope="module")
def small() -> SmallResNet:
    generator = torch.Generator().manual_seed(0)
    return SmallResNet(ResNetConfig((8, 12), (1, 1)), generator).eval()


SHRUNK, SIZE = Preprocess(image_size=12, crop=0.875), (20, 17)


@pytest.fixture(scope="module")
def files(small, tmp_path_factory) -> tuple[Release, dict[str, Path]]:
    folder, released = tmp_path_factory.mktemp("files"), learned(small, SHRUNK)
    return released, {kind: save(kind, released, small, SIZE, folder) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_model_about_a_centre_is_as_predict(tmp_path, small, kind: str) -> None:
    """Private pictures are darker than public ones, so that they have much in common."""
    released = learned(small, SHRUNK, light=DARK)
    assert released.report["common_share"] > 0.3
    assert 2 <= released.report["directions"] <= 8
    assert released.transform.directions is not None
    check(save(kind, released, small, SIZE, tmp_path), released, small, SIZE)


@pytest.mark.parametrize("kind", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("joined", [False, True])
def test_pictures_that_are_enlarged_and_inverted(tmp_path, small, kind, joined) -> None:
    """By one encoder, and by two side by side, each with its own scaling."""
    encoder, preprocess = small, Preprocess(image_size=24, invert=True)
    if joined:
        encoder = Concat([(small, SHRUNK), (small, Preprocess(image_size=24))]).eval()
        preprocess = Preprocess(invert=True)
    released = learned(encoder, preprocess)
    check(save(kind, released, encoder, SIZE, tmp_path), released, encoder, SIZE)
    if isinstance(encoder, Concat):  # the encoder is as before
        assert encoder.scaled == [part.scaled for part in encoder.prepared]


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "preprocess", "size"),
    [
        ("simclr-small", Preprocess(), (32, 32)),
        ("simclr-small", Preprocess(image_size=32, crop=0.875), (60, 45)),
        ("mirrored:simclr-small", Preprocess(), (32, 32)),
        ("concat:timm:resnet10t@48+simclr-small", Preprocess(), (32, 32)),
        ("timm:mobilenetv3_small_050", Preprocess(image_size=96), (64, 64)),
        ("timm:vit_tiny_patch16_224", Preprocess(image_size=224), (256, 300)),
    ],
)
def test_a_file_with_a_known_encoder_is_as_predict(tmp_path, kind, name, preprocess, size) -> None:
    encoder = build_encoder(name, weights="random" if "timm" in name else None)
    released = learned(encoder, preprocess, size)
    check(save(kind, released, encoder, size, tmp_path), released, encoder, size)


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(),
        Preprocess(crop=0.5),
        Preprocess(image_size=20, invert=True),
        Preprocess(image_size=96, crop=0.875),
        Preprocess(image_size=33),
        Preprocess(image_size=(16, 24), crop=0.9),
        Preprocess(image_size=24, fit="shortest", resize=28, interpolation="bilinear"),
        Preprocess(image_size=24, fit="longest", border=(0.1, 0.5, 0.9)),
        Preprocess(image_size=(33, 30), fit="squash", interpolation="nearest"),
    ],
)
@pytest.mark.parametrize("size", [(33, 33), (50, 41), (64, 20)])
def test_pixels_are_prepared_alike(preprocess: Preprocess, size: tuple[int, int]) -> None:
    images = torch.from_numpy(export.some_pictures(size))
    found = export._Pixels(preprocess, torch.zeros(1, 3, *size, dtype=torch.uint8))(images)
    assert torch.allclose(found, preprocess(images), atol=2e-6)


def test_a_border_goes_around_any_number_of_pictures() -> None:
    preprocess = Preprocess(image_size=24, fit="longest", border=(0.1, 0.5, 0.9))
    images = torch.from_numpy(export.some_pictures((40, 31)))
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    network = export._Pixels(preprocess, images[:1])
    program = torch.export.export(network, (images[:3],), dynamic_shapes=shapes).module()
    for n in (1, len(images)):
        assert torch.allclose(program(images[:n]), preprocess(images[:n]), atol=2e-6)


def test_files_are_as_predict_and_say_what_they_are(files, small) -> None:
    released, paths = files
    for path in paths.values():
        check(path, released, small, SIZE)
    told = export.described(released, SIZE)
    extra = {"release.json": ""}
    with warnings.catch_warnings(action="ignore"):  # torch, of itself
        torch.export.load(paths["pt2"], extra_files=extra)
    assert json.loads(extra["release.json"]) == told
    assert (told["class_names"], told["epsilon"]) == (list(NAMES), 20.0)
    assert told["encoding"]["encoder_hash"] == encoder_hash(small)
    session = onnxruntime.InferenceSession(paths["onnx"])
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["encoding"]) == told["encoding"]
    (pixels,) = session.get_inputs()
    assert (pixels.name, pixels.type, pixels.shape[1:]) == ("pixels", "tensor(uint8)", [3, *SIZE])
    assert isinstance(pixels.shape[0], str)  # any number of pictures


def test_the_size_is_that_of_the_training_pictures_or_as_asked(small) -> None:
    stored = learned(small, Preprocess(), (16, 16))
    sizes = [export.picture_size(stored, asked) for asked in (None, (32, 16))]
    assert sizes == [(16, 16), (32, 16)]
    with pytest.raises(ValueError, match=r"input_size must be in \[1, 8192\]"):
        export.picture_size(stored, (3, 100_000))
    assert stored.encoding is not None
    unknown = replace(stored, encoding=replace(stored.encoding, preprocess=Preprocess()))
    with pytest.raises(ValueError, match="input_size must be given for a model that knows none"):
        export.picture_size(unknown, None)


@pytest.mark.parametrize(
    ("size", "taken"),
    [
        *(((16, 16), (16, 16)), ((40, 40), (16, 16)), ((50, 33), (20, 14)), ((9, 12), (16, 16))),
        *(((16, 90), (16, 16)), ((61, 16), (20, 14)), ((16, 16), (20, 14))),
    ],
)
def test_pictures_of_any_size_are_brought_to_it_in_the_file(small, taken, size) -> None:
    """As Pillow does it when they are read."""
    released = learned(small, Preprocess(), taken)
    pixels = export.some_pictures(size)
    classes, shares = export.trace(released, small, size).module()(torch.from_numpy(pixels))
    brought = np.stack([squared(each, taken) for each in pixels.transpose(0, 2, 3, 1).copy()])
    rows = small(torch.from_numpy(brought.transpose(0, 3, 1, 2).copy()) / 255)
    expected = released.predict_proba(rows.detach()).numpy()
    assert np.abs(shares.detach().numpy() - expected).max() < PARITY
    assert (classes.numpy() == expected.argmax(1)).all()
    if size != taken:
        found = export._Brought(size, taken)(torch.from_numpy(pixels))
        assert np.array_equal(found.numpy().transpose(0, 2, 3, 1), brought)


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
