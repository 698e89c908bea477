"""Files of tables are found as other systems spell them, and nothing but files is read."""

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from pretrain.datasets import UnreadableImage
from pretrain.intake.files import read_picture, start_of
from pretrain.sources import open_images


def test_a_table_from_windows_of_pictures_from_a_mac(tmp_path: Path, pictures) -> None:
    lines = ["path,label"]
    for k, file in enumerate(pictures.files[:4]):
        name = f"Röntgen {k}.png"
        (tmp_path / unicodedata.normalize("NFD", name)).write_bytes(file)
        lines.append(f"{unicodedata.normalize('NFC', name)},{'xy'[k % 2]}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    images = open_images(f"csv:{tmp_path}/t.csv")
    assert (images.images(np.arange(4)) == pictures.pixels[:4]).all()


def test_pipes_and_folders_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    for name in ("pipe.png", "folder.png"):
        with pytest.raises(UnreadableImage, match=f"{name} must be a readable image, got: "):
            read_picture(tmp_path / name)
        assert start_of(tmp_path / name, 4) == b""
    for name in ("none.png", "none/1.png", "C:\\none\\1.png", "nul\0.png"):
        with pytest.raises(UnreadableImage, match="must be a readable image, got: "):
            read_picture(tmp_path / name)
