"""Small untrained models in the files of other libraries, and no network."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pretrain.encoder import encoder_hash, load_encoder, save_encoder
from pretrain.encoders.base import Encoder
from pretrain.recipes import ResNetConfig
from pretrain.resnet import SmallResNet

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 7,
}
PIXELS = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))
CUT = {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 28, "width": 28},
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}
SQUASHED = {"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}}


def small(seed: int = 0) -> SmallResNet:
    """A tiny untrained encoder of our own."""
    config = ResNetConfig((4, 8), (1, 2), stem_stride=2, pool=2)
    return SmallResNet(config, torch.Generator().manual_seed(seed)).eval()


def assert_saved_and_read(encoder: Encoder, path: Path, pixels: torch.Tensor = PIXELS) -> Encoder:
    """A file holds all of an encoder: hash, preprocessing, description, embeddings."""
    save_encoder(encoder, path)
    read = load_encoder(path)
    assert encoder_hash(read) == encoder_hash(encoder)
    assert read.preprocess == encoder.preprocess
    assert read.architecture() == encoder.architecture()
    assert not read.training
    with torch.inference_mode():
        assert torch.equal(read(pixels), encoder(pixels))
        assert read(pixels).shape == (len(pixels), read.embedding_dim)
    return read


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody can be asked, and nothing was downloaded before."""

    def refused(*_: Any, **__: Any) -> None:
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))


Written = Callable[..., Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    """Writes an untrained model by its kind, as `save_pretrained` does, with a processor."""
    import transformers
    from transformers.utils import logging

    def write(kind: str, processor: dict[str, Any] = SQUASHED, task: str = "Model", **more: Any):
        config = getattr(transformers, f"{kind}Config")(**{**SMALL, **more})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(transformers, f"{kind}{task}")(config)
        logging.disable_progress_bar()
        model.save_pretrained(tmp_path / kind)
        logging.enable_progress_bar()
        (tmp_path / kind / "preprocessor_config.json").write_text(json.dumps(processor))
        return tmp_path / kind

    return write


@pytest.fixture
def dinov2(written: Written) -> Path:
    """What `hf:facebook/dinov2-small` is, of 2 layers and 16 numbers."""
    return written("Dinov2", CUT)
