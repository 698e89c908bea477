"""Twelve small pictures as every format holds them; small untrained models; no network."""

import io
import json
import socket
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

from pretrain.datasets import ImageSet
from pretrain.encoder import encoder_hash, load_encoder, save_encoder
from pretrain.encoders.base import Encoder
from pretrain.recipes import ResNetConfig
from pretrain.resnet import SmallResNet

CLASSES = ("cat", "dog", "owl")
PIXELS = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"image_size": 28, "patch_size": 7}
SQUASHED = {"image_processor_type": "ViTImageProcessor", "size": {"height": 28, "width": 28}}
Written = Callable[..., Path]


def encoded(picture: Image.Image | np.ndarray, kind: str = "PNG", **options: Any) -> bytes:
    """The file that Pillow makes of a picture."""
    image = Image.fromarray(picture) if isinstance(picture, np.ndarray) else picture
    image.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


BLACK = encoded(Image.new("RGB", (4, 4)))


def put(path: Path, content: bytes = BLACK) -> None:
    """Writes a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def png(values: np.ndarray, colour: int = 0, significant: bytes = b"", size: Any = None) -> bytes:
    """A PNG of 16 bits per channel, as its specification puts it together."""

    def chunk(name: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(name + content))
        return struct.pack(">I", len(content)) + name + content + check

    height, width = size or values.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    parts = [chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0))]
    parts += [chunk(b"sBIT", significant)] if significant else []
    parts += [chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def csv(folder: Path, labels: Sequence[Any], header: str = "label") -> str:
    """Writes a table of black pictures with these labels, as other formats do below."""
    lines = [f"path,{header}"]
    for k, label in enumerate(labels):
        put(folder / f"{k}.png")
        lines.append(f'{k}.png,"{label}"' if isinstance(label, str) else f"{k}.png,{label}")
    return table(folder, "\n".join(lines))


def table(folder: Path, text: str | bytes) -> str:
    """Writes a csv file; its `--data`."""
    put(folder / "t.csv", text if isinstance(text, bytes) else text.encode())
    return f"csv:{folder / 't.csv'}"


def parquet(folder: Path, labels: Sequence[Any] | None = None, **columns: Any) -> str:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    held = {} if labels is None else {"image": [BLACK] * len(labels), "label": labels}
    pq.write_table(pa.table(held | columns), folder / "t.parquet")
    return f"parquet:{folder / 't.parquet'}"


def tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return f"wds:{path}"


def shard(folder: Path, labels: Sequence[Any]) -> str:
    members = {f"{k}.png": BLACK for k in range(len(labels))}
    fields = {f"{k}.json": json.dumps({"label": each}).encode() for k, each in enumerate(labels)}
    return tar(folder / "t.tar", members | fields)


def data_set(labels: Sequence[Any], kind: Any, files: Sequence[bytes] = (), **more: Any) -> Any:
    """A set of the library `datasets`, whose labels are of a feature or of these classes."""
    library: Any = pytest.importorskip("datasets")
    kind = library.ClassLabel(names=list(kind)) if isinstance(kind, tuple) else kind
    pictures = [{"bytes": file, "path": None} for file in (files or [BLACK] * len(labels))]
    features = {"image": library.Image(), "label": kind}
    features |= dict.fromkeys(more, library.Value("string"))
    columns = {"image": pictures[: len(labels)], "label": labels} | more
    return library.Dataset.from_dict(columns, features=library.Features(features))


def archive(folder: Path, labels: Any, **more: Any) -> str:
    y = np.array(labels)
    np.savez(folder / "t.npz", x_train=np.zeros((len(y), 4, 4), np.uint8), y_train=y, **more)
    return str(folder / "t.npz")


@pytest.fixture(scope="session")
def pictures() -> SimpleNamespace:
    """What is expected of twelve of them, in order."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 8, 8, 3), np.uint8)
    return SimpleNamespace(
        files=[encoded(image) for image in pixels],
        pixels=pixels.transpose(0, 3, 1, 2),
        labels=[CLASSES[k % 3] for k in range(12)],
        numbers=[k % 3 for k in range(12)],
        users=[f"ward {'BCA'[k // 4]}" for k in range(12)],
        user_numbers=[1] * 4 + [2] * 4 + [0] * 4,
        splits=["train"] * 8 + ["test"] * 4,
        split_numbers=[0] * 8 + [1] * 4,
    )


def assert_read(images: ImageSet, pictures) -> None:
    assert images.labels.tolist() == pictures.numbers
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert images.user_names == ("ward A", "ward B", "ward C")
    assert images.split.tolist() == pictures.split_numbers
    assert not images.inferred
    assert (images.images(slice(None)) == pictures.pixels).all()
    order = np.random.default_rng(0).integers(0, 12, 40)
    assert (images.images(order) == pictures.pixels[order]).all()


CUT = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 32}}
CUT |= {"crop_size": {"height": 28, "width": 28}}
CUT |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


def small(seed: int = 0) -> SmallResNet:
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


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody can be asked, and nothing was downloaded before."""
    refused = Mock(side_effect=OSError("no network in tests"))
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "empty"))


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
