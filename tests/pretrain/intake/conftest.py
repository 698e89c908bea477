"""Twelve small pictures with classes, users and splits, as every format holds them."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

CLASSES = ("cat", "dog", "owl")


@dataclass(frozen=True)
class Pictures:
    """What is expected of them, in order."""

    files: list[bytes]
    pixels: np.ndarray  # (12, 3, 8, 8)
    labels: list[str]
    users: list[str]
    splits: list[str]

    @property
    def numbers(self) -> list[int]:
        return [CLASSES.index(label) for label in self.labels]

    @property
    def user_numbers(self) -> list[int]:
        return [sorted(set(self.users)).index(user) for user in self.users]

    @property
    def split_numbers(self) -> list[int]:
        return [("train", "test").index(split) for split in self.splits]


@pytest.fixture
def pictures() -> Pictures:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (12, 8, 8, 3), np.uint8)
    files = []
    for image in pixels:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return Pictures(
        files=files,
        pixels=pixels.transpose(0, 3, 1, 2),
        labels=[CLASSES[k % 3] for k in range(12)],
        users=[f"ward {'BCA'[k // 4]}" for k in range(12)],
        splits=["train"] * 8 + ["test"] * 4,
    )


@pytest.fixture
def write_csv(tmp_path: Path, pictures: Pictures) -> Callable[..., str]:
    """Writes the files and a table of them; its `--data`."""

    def write(header: str = "path,label,user,split", *, ending: str = "\n") -> str:
        delimiter = next((mark for mark in ";\t" if mark in header), ",")
        lines = [header]
        (tmp_path / "scans").mkdir(exist_ok=True)
        for k, file in enumerate(pictures.files):
            (tmp_path / "scans" / f"{k:02d}.png").write_bytes(file)
            cells = (pictures.labels[k], pictures.users[k], pictures.splits[k])
            row = [f"scans/{k:02d}.png", *cells][: header.count(delimiter) + 1]
            lines.append(delimiter.join(row))
        (tmp_path / "table.csv").write_text(ending.join(lines) + ending, newline="")
        return f"csv:{tmp_path / 'table.csv'}"

    return write
