"""Files of tables: found as other systems spell them, read once, and nothing but files."""

import os
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import ImageSet, UnreadableImage
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pics" / "Z\u00fcrich").mkdir(parents=True)
    for name in ("a.png", "b.png", "Z\u00fcrich/o\u0308l.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / "pics" / name)
    return tmp_path


def opened(folder: Path, *rows: str, **options: Any) -> ImageSet:
    header = ["path,label,user", "path,label"][rows[0].count(",") == 1]
    (folder / "t.csv").write_text("\n".join([header, *rows]), encoding="utf-8")
    return open_images(f"csv:{folder / 't.csv'}", **options)


@pytest.mark.parametrize(
    "name",
    [
        r"pics\a.png",
        r".\pics\a.png",
        "pics/Z\u00fcrich/\u00f6l.png",
        "pics/Zu\u0308rich/o\u0308l.png",
        "pics\\Zu\u0308rich\\\u00f6l.png",
    ],
)
def test_spellings_of_other_systems_are_found(folder: Path, name: str) -> None:
    images = opened(folder, f"{name},a")
    assert images.images(slice(None)).shape == (1, 3, 4, 4)
    assert images.image_name(0) == name


def test_a_file_of_exactly_this_name_comes_first(folder: Path) -> None:
    Image.new("RGB", (4, 4), "white").save(folder / r"pics\a.png")
    images = opened(folder, r"pics\a.png,a", "pics/a.png,b")
    assert images.images(slice(None)).max((1, 2, 3)).tolist() == [255, 0]


@pytest.mark.parametrize(
    "again",
    [
        "pics/a.png",
        "./pics/a.png",
        "pics/../pics/a.png",
        r"pics\a.png",
        "link.png",
        "{}/pics/a.png",
    ],
)
def test_one_file_is_one_row(folder: Path, again: str) -> None:
    os.symlink(folder / "pics" / "a.png", folder / "link.png")
    again = again.format(folder)
    rows = ("pics/a.png,x,anna", "pics/b.png,x,ben")
    place = r"got it in row 0 \(pics/a\.png\) and row 2 \(.*a\.png\)$"
    place = place.replace("a\\.png\\)$", "link\\.png\\)$") if again == "link.png" else place
    for label in "xy":
        with pytest.raises(ValueError, match=f"must name every file once, .*{place}"):
            opened(folder, *rows, f"{again},{label},anna")
    with pytest.raises(ValueError, match=r"row 0 .* and row 2 .*, of users 'anna' and 'ben'"):
        opened(folder, *rows, f"{again},x,ben")


def test_missing_files_and_copies(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"once, .* in row 0 \(none\.png\) and row 1"):
        opened(folder, "none.png,a", "none.png,b")
    images = opened(folder, "pics/a.png,a", "none.png,b")
    rule = r"t\.csv: row 1: .*none\.png must be a readable image, got: No such"
    with pytest.raises(UnreadableImage, match=rule):
        images.images(slice(None))
    with pytest.raises(
        ValueError, match=r"name a file in every row \(download it first\), got https:"
    ):
        opened(folder, "pics/a.png,a", "https://example.org/b.png,b")
    os.link(folder / "pics" / "a.png", folder / "hard.png")
    assert len(opened(folder, "pics/a.png,a", "hard.png,a")) == 2  # as a copy is another file


def test_one_file_in_two_rows_of_parquet(folder: Path) -> None:
    pa: Any = pytest.importorskip("pyarrow")
    pq: Any = pytest.importorskip("pyarrow.parquet")
    data, path = (folder / "pics" / "a.png").read_bytes(), folder / "t.parquet"
    binary = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    files = ["pics/a.png", "pics/b.png", "./pics/a.png"]
    without = [{"bytes": None, "path": name} for name in files]
    for column in (pa.array(files), pa.array(without), pa.array(without, binary)):
        pq.write_table(pa.table({"image": column, "user": ["u", "v", "w"]}), path)
        with pytest.raises(
            ValueError, match=r"once, .* got it in row 0 .* and row 2 .* 'u' and 'w'"
        ):
            open_images(f"parquet:{path}")
    same_names = [{"bytes": data, "path": "0.png"}] * 3
    pq.write_table(pa.table({"image": same_names}), path)
    assert len(open_images(f"parquet:{path}")) == 3


def test_one_file_in_two_rows_of_a_data_set(folder: Path) -> None:
    library: Any = pytest.importorskip("datasets")
    files = [str(folder / "pics" / name) for name in ("a.png", "b.png", "a.png")]
    library.Dataset.from_dict({"image": files, "label": ["x", "y", "x"]}).save_to_disk(
        folder / "hf"
    )
    with pytest.raises(ValueError, match=r"must name every file once, .* row 0 .* and row 2"):
        open_images(f"hf:{folder / 'hf'}")
