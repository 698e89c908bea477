"""Small image sets and encoders shared by the tests of this room."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from embed.extract import extract
from embed.options import ExtractOptions
from pretrain.datasets import ImageSet
from pretrain.encoder import save_encoder
from pretrain.preprocess import Preprocess
from tests.pretrain.conftest import small

ROWS, MARK = 100, 137


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """100 images of 8x8 pixels; the first is the row number, the next say that there is one."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (ROWS, 8, 8), np.uint8)
    pixels[:, 0, :3] = np.stack([np.arange(ROWS), *np.full((2, ROWS), MARK)], 1)
    path = tmp_path / "images.npz"
    np.savez(
        path,
        x_train=pixels[:80],
        y_train=np.arange(80) % 3,
        writer_train=np.arange(80) // 4,
        x_test=pixels[80:],
        y_test=np.arange(20) % 3,
        writer_test=20 + np.arange(20) // 4,
    )
    return path


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_encoder(small(), tmp_path / "encoder.safetensors")
    return tmp_path / "encoder.safetensors"


def embed(images: ImageSet, encoder: nn.Module, out: Path, **options: Any) -> Any:
    """`extract`, with its own arguments and those of `ExtractOptions` by their names."""
    names = ("encoder_name", "preprocess", "weights", "test_share")
    own = {name: options.pop(name) for name in names if name in options}
    own = {"encoder_name": "test", "preprocess": Preprocess()} | own
    return extract(images, encoder, out, options=ExtractOptions(**options), **own)


def rows_in(images: Tensor) -> list[int]:
    """Row numbers of those of the pictures, (n, 3, 8, 8) in [0, 1], that are of `archive`."""
    first = (images[:, 0, 0, :3] * 255).round()
    return first[(first[:, 1:] == MARK).all(1), 0].int().tolist()


class Mean(nn.Module):
    """(n, 3, h, w) to (n, 3)."""

    embedding_dim = 3

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, -1.0]))

    def forward(self, images: Tensor) -> Tensor:
        return images.mean((2, 3)) * self.weight


class RowNumbers(nn.Module):
    """Embeds an image as its first pixel, so that a row shows where it came from."""

    embedding_dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.seen: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen += rows_in(images)
        return (images[:, 0, 0, :1] * 255).round() * self.weight


@pytest.fixture
def row_numbers() -> RowNumbers:
    return RowNumbers()
