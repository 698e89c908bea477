"""`export` writes one file that was compared, or nothing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from pretrain.encoder import encoder_hash, save_encoder
from pretrain.preprocess import Preprocess
from pretrain.resnet import ResNetConfig, SmallResNet
from train_distributed import Privacy, Release, release
from train_distributed.released.export import run_torch

SIZE = 12


@pytest.fixture
def model(tmp_path) -> Path:
    """A model of pictures of 12 x 12, with its encoder beside it."""
    encoder = SmallResNet(ResNetConfig((8, 12), (1, 1)), torch.Generator().manual_seed(0)).eval()
    known = Encoding(
        encoder="test",
        encoder_hash=encoder_hash(encoder),
        weights="random",
        preprocess=Preprocess(pictures=SIZE),
    )
    rng, labels = np.random.default_rng(0), np.arange(60) % 3
    pixels = rng.random((60, 3, SIZE, SIZE), np.float32) * np.eye(3, 3)[labels][:, :, None, None]
    with torch.inference_mode():
        rows = encoder(torch.from_numpy(pixels.astype(np.float32))).numpy()
    meta = {"class_names": list("abc"), "image_shape": [3, SIZE, SIZE], **known.to_json()}
    private, public = (
        EmbeddingSet(embeddings=part, labels=labels[::2], users=labels[::2] * 0, meta=meta)
        for part in (rows[::2], rows[1::2])
    )
    transform = PublicTransform.fit(public, components=3)
    learned = release(private, "discriminant", Privacy(9.0, 1e-5), transform=transform, sums=1)
    learned.save(tmp_path / "model")
    save_encoder(encoder, tmp_path / "model" / "encoder.safetensors")
    return tmp_path / "model"


def test_a_file_is_written_and_compared(call, model, tmp_path) -> None:
    out = tmp_path / "out"
    code, said, error = call(
        "export", "--model", str(model), "--format", "torch-export", "--out", str(out)
    )
    assert (code, error) == (0, "")
    assert sorted(p.name for p in out.iterdir()) == ["export.json", "model.pt2"]
    told = json.loads((out / "export.json").read_text())
    assert told["largest_difference"] < 1e-5
    assert told["classes_that_differ"] == 0
    assert told["class_names"] == ["a", "b", "c"]
    assert told["encoding"]["encoder"] == "test"
    assert "warning" not in said
    pixels = np.random.default_rng(0).integers(0, 256, (9, 3, SIZE, SIZE), np.uint8)
    _, shares = run_torch(out / "model.pt2")(pixels)
    assert shares.shape == (9, len(Release.load(model).class_names))


@pytest.mark.parametrize("package", ["onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_its_extra(
    call, model, tmp_path, monkeypatch, package: str
) -> None:
    if package == "onnxruntime":
        monkeypatch.setattr("train_distributed.released.export.save_onnx", lambda *_: None)
    monkeypatch.setitem(sys.modules, package, None)
    out = str(tmp_path / "out")
    code, _, error = call("export", "--model", str(model), "--format", "onnx", "--out", out)
    assert code == 2
    assert f"must have {package} installed: pip install 'blind-averaging[export]'" in error
    assert not (tmp_path / "out").exists()


def test_a_difference_is_said(call, model, tmp_path, monkeypatch) -> None:
    from train_distributed.released.export import _Head

    whole = _Head.forward

    def wrong(head: _Head, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return whole(head, rows + 1e-2)

    monkeypatch.setattr(_Head, "forward", wrong)
    out = str(tmp_path / "out")
    code, said, _ = call("export", "--model", str(model), "--format", "torch-export", "--out", out)
    assert code == 0
    assert "differs from predict by more than 1e-05" in said
