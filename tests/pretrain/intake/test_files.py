"""Files are found as other systems spell them, and nothing but files is read."""

import os
import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from pretrain.intake.decode import UnreadableImage
from pretrain.intake.files import read_picture, start_of
from pretrain.sources import open_images

Form = Literal["NFC", "NFD"]


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("written", ["NFC", "NFD"])
def test_either_form_of_a_name_is_found(tmp_path: Path, stored: Form, written: Form) -> None:
    folder, name = "Müller", "Röntgen é.png"
    (tmp_path / unicodedata.normalize("NFC", folder)).mkdir()  # the folder has its own form
    place = tmp_path / unicodedata.normalize("NFC", folder) / unicodedata.normalize(stored, name)
    place.write_bytes(b"it")
    for slash in "/\\":
        asked = unicodedata.normalize(written, f"{folder}{slash}{name}")
        assert read_picture(tmp_path, asked) == b"it"


def test_the_exact_name_comes_first(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        (tmp_path / unicodedata.normalize(form, "ü.png")).write_bytes(form.encode())
    for form in ("NFC", "NFD"):
        assert read_picture(tmp_path, unicodedata.normalize(form, "ü.png")) == form.encode()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.png").write_bytes(b"slash")
    (tmp_path / "a\\b.png").write_bytes(b"backslash")
    assert read_picture(tmp_path, "a\\b.png") == b"backslash"


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
            read_picture(tmp_path, name)
        assert start_of(tmp_path / name, 4) == b""
    for name in ("none.png", "none/1.png", "C:\\none\\1.png", "nul\0.png"):
        with pytest.raises(UnreadableImage, match="must be a readable image, got: "):
            read_picture(tmp_path, name)
