"""WebDataset's shards: read as the library itself reads them, in any order of rows."""

import gc
import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import UnreadableImage
from pretrain.sources import open_images
from tests.pretrain.conftest import BLACK, tar

wds: Any = pytest.importorskip("webdataset")


@pytest.fixture
def shards(tmp_path: Path, pictures) -> str:
    """Five samples in each shard, as the library writes them."""
    with wds.ShardWriter(f"{tmp_path}/s-%03d.tar", maxcount=5, verbose=0) as sink:
        for k, file in enumerate(pictures.files):
            fields = {"finding": pictures.labels[k], "user": pictures.users[k]}
            sample = {"__key__": f"x/{k:04d}", "png": file, "cls": pictures.numbers[k]}
            sink.write(sample | {"json": fields, "split": pictures.splits[k]})
    return f"wds:{tmp_path}/s-{{000..002}}.tar"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_shards_are_read_as_the_library_does(shards: str, pictures, tmp_path: Path) -> None:
    images = open_images(shards)
    assert images.labels.tolist() == pictures.numbers
    assert images.inferred
    assert images.split.tolist() == pictures.split_numbers
    assert images.user_names == ("ward A", "ward B", "ward C")
    assert np.asarray(images.users).tolist() == pictures.user_numbers
    assert (images.images(slice(None)) == pictures.pixels).all()
    order = np.array([11, 0, 5, 5])
    assert (images.images(order) == pictures.pixels[order]).all()
    assert images.image_name(6) == "s-001.tar/x/0006.png"
    assert images.place(6) == f"{tmp_path}/s-001.tar/x/0006.png"
    by_name = open_images(f"wds:{tmp_path}/s-*.tar", columns="label=finding")
    assert by_name.class_names == ("cat", "dog", "owl")
    with pytest.raises(ValueError, match=r"must give label= one of cls, finding.*, got 'age'"):
        open_images(shards, columns="label=age")
    theirs = wds.WebDataset(shards.removeprefix("wds:"), shardshuffle=False)
    samples = list(theirs)
    pixels = [np.asarray(Image.open(io.BytesIO(sample["png"]))) for sample in samples]
    assert (np.stack(pixels).transpose(0, 3, 1, 2) == pictures.pixels).all()
    assert [int(sample["cls"]) for sample in samples] == pictures.numbers
    del theirs
    gc.collect()  # the library leaves its files open


def test_samples_of_several_pictures_and_of_none(tmp_path: Path, pictures) -> None:
    a, b, c = pictures.files[:3]
    members = {"0.left.png": a, "0.right.png": b, "readme": b"", "1.cls": b"3", "2.right.png": c}
    source = tar(tmp_path / "s.tar", members)
    with pytest.raises(ValueError, match=r"must have one picture .* got 0\.left\.png and 0\.right"):
        open_images(source)
    right = open_images(source, columns="path=right.png,label=")
    assert tuple(name for name, _ in right.skipped) == ("s.tar/readme", "s.tar/1")
    assert (right.images(slice(None)) == pictures.pixels[[1, 2]]).all()


def test_names_longer_than_a_tar_s_field_and_metadata_of_a_sample(tmp_path: Path) -> None:
    name = "folder/" * 30 + "ü" * 60
    fields = json.dumps({"label": "owl", "user": 17, "split": "validation"}).encode()
    images = open_images(tar(tmp_path / "s.tar", {f"{name}.png": BLACK, f"{name}.json": fields}))
    assert images.image_name(0) == f"s.tar/{name}.png"
    assert images.images(slice(None)).shape == (1, 3, 4, 4)
    assert (images.class_names, images.user_names) == (("owl",), ("17",))
    assert images.split.tolist() == [2]


def together(*keys: str, pictures) -> dict[str, bytes]:
    """A picture and its class for each key."""
    held = zip(keys, pictures.files, pictures.labels, strict=False)
    return {
        name: content
        for key, file, label in held
        for name, content in ((f"{key}.png", file), (f"{key}.cls", label.encode()))
    }


PAIRED = {"img-0.png": BLACK, "img-1.png": BLACK, "lab-0.cls": b"x", "lab-1.cls": b"x"}
DOTTED = ("scan 1.{} (copy)", "2026.12.{:02}", "v1.2/a.{}", ".{}")
TWICE = {"0.png": BLACK, "0.cls": b"a", "0.PNG": BLACK}


@pytest.mark.parametrize(
    ("members", "rule"),
    [
        ({"0.png": BLACK, "0.json": b"{"}, r"0\.json must be text, got"),
        ({"0.png": BLACK, "0.json": b"[]"}, r"0\.json must be a JSON object, got list"),
        ({"0.png": BLACK, "0.cls": b"\xff"}, r"0\.cls must be text, got"),
        ({"0.png": BLACK, "0.cls": bytes(1 << 21)}, r"0\.cls must have <= 1048576"),
        ({"0.txt": b""}, "must hold at least one image, got none"),
        (TWICE, r"must hold every name once, in any case, got 0\.PNG again"),
        (PAIRED, r"img-0\.png without cls and s\.tar/lab-0 with it"),
        (
            {name.replace("-", "/"): PAIRED[name] for name in PAIRED},
            r"img/0\.png without cls and s\.tar/lab/0 with it",
        ),
        *(  # a dot in a name does not join pictures
            (
                {f"{key.format(k)}.{end}": BLACK for k in range(4) for end in ("png", "cls")},
                "must (have one picture|hold at least one image)",
            )
            for key in DOTTED
        ),
    ],
)
def test_shards_that_are_refused(tmp_path: Path, members: dict[str, bytes], rule: str) -> None:
    source = tar(tmp_path / "s.tar", members)
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    if "without cls" in rule:
        images = open_images(source, columns="label=")
        assert (len(images), len(images.skipped)) == (2, 2)


def test_damaged_and_packed_shards_are_named(tmp_path: Path, shards: str) -> None:
    images = open_images(tar(tmp_path / "bad.tar", {"0.png": b"?"}))
    with pytest.raises(UnreadableImage, match=r"bad\.tar/0\.png must be a readable image, got 1"):
        images.images(slice(None))
    whole = (tmp_path / "s-000.tar").read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in (*range(0, 3000, 100), *range(0, end, 512)):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.tar must be a whole tar file"):
            open_images(f"wds:{tmp_path}/cut.tar")
    for name, content in (("z.tar.gz", gzip.compress(whole)), ("n.tar", b"nothing" * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="must be a whole tar file, uncompressed: "):
            open_images(f"wds:{tmp_path}/{name}")
    for mark in ("gz", "bz2", "xz"):
        mode: Any = f"w:{mark}"
        with tarfile.open(tmp_path / "s.tar", mode) as file:
            file.addfile(tarfile.TarInfo("0.png"))
        with pytest.raises(ValueError, match="must be a whole tar file, uncompressed: unpack this"):
            open_images(f"wds:{tmp_path}/s.tar")


def test_dots_in_folders_are_of_the_folder(tmp_path: Path, pictures) -> None:
    for keys in ("site.v1/{}", "./{}", "a.b/c.d/{}"):
        members = together(*(keys.format(k) for k in range(4)), pictures=pictures)
        assert open_images(tar(tmp_path / "s.tar", members)).labels.tolist() == [0, 1, 2, 0]


def test_members_that_lie_apart_are_one_sample(tmp_path: Path, pictures) -> None:
    whole = together(*"0123", pictures=pictures)
    for order in (sorted(whole, key=lambda name: name[2:]), sorted(whole, reverse=True)):
        images = open_images(tar(tmp_path / "s.tar", {name: whole[name] for name in order}))
        found = {images.image_name(k): images.class_names[images.labels[k]] for k in range(4)}
        assert found == {f"s.tar/{k}.png": pictures.labels[k] for k in range(4)}
        for row in range(4):
            k = int(images.image_name(row)[6])
            assert (images.images(slice(row, row + 1))[0] == pictures.pixels[k]).all()
    two = {"\u00fc.png": BLACK, "u\u0308.CLS": b"cat", "b.PNG": BLACK, "b.cls": b"dog"}
    assert open_images(tar(tmp_path / "s.tar", two)).labels.tolist() == [0, 1]


def test_what_is_no_label_and_what_systems_add(tmp_path: Path) -> None:
    strange = {f"{k}{end}": BLACK for k in range(3) for end in (".png", ".cls.user")}
    assert not open_images(tar(tmp_path / "s.tar", strange)).labelled
    added = {"._0.png": b"x", "__MACOSX/0.png": b"x", "@eaDir/0.png": BLACK}
    images = open_images(tar(tmp_path / "s.tar", {"0.png": BLACK, "0.cls": b"a"} | added))
    assert (len(images), len(images.skipped)) == (1, 3)
