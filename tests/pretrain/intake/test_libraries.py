"""What the libraries `datasets` and `webdataset` wrote, and what they read."""

import gc
import gzip
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from pretrain.datasets import UnreadableImage
from pretrain.sources import open_images
from tests.pretrain.conftest import BLACK, CLASSES, assert_read, data_set, put, tar

datasets: Any = pytest.importorskip("datasets")
ORDER = ("owl", "dog", "cat")
wds: Any = pytest.importorskip("webdataset")
PAIRED = {"img-0.png": BLACK, "img-1.png": BLACK, "lab-0.cls": b"x", "lab-1.cls": b"x"}
APART = {name.replace("-", "/"): PAIRED[name] for name in PAIRED}
DOTTED = ("scan 1.{} (copy)", "2026.12.{:02}", "v1.2/a.{}", ".{}")
DOT = "must (have one picture|hold at least one image)"
DOTS = [[f"{key.format(k)}.{end}" for k in range(4) for end in ("png", "cls")] for key in DOTTED]
TWICE = {"0.png": BLACK, "0.cls": b"a", "0.PNG": BLACK}


def a_set(pictures, rows: slice = slice(None)) -> Any:
    numbers, files, users = pictures.numbers[rows], pictures.files[rows], pictures.users[rows]
    return data_set(numbers, CLASSES, files, user=users)


def saved(folder: Path, held: Any) -> str:
    """Writes a set, or one for each split; its `--data`."""
    held = datasets.DatasetDict(held) if isinstance(held, dict) else held
    held.save_to_disk(folder / "saved")
    return f"hf:{folder}/saved"


def test_a_saved_set_and_its_splits(tmp_path: Path, pictures) -> None:
    images = open_images(saved(tmp_path, a_set(pictures)))
    assert (images.images(np.array([9, 2])) == pictures.pixels[[9, 2]]).all()
    assert images.image_name(9) == "row 9"
    held_out = saved(tmp_path / "numbers", {"validation": data_set([0, 0, 1], ("1", "0"))})
    numbers = open_images(held_out)
    assert (numbers.class_names, numbers.labels.tolist()) == (("1", "0"), [0, 0, 1])
    assert numbers.split.tolist() == [2, 2, 2]
    names = {"label": "finding", "user": "ward", "image": "scan"}
    rows = {"train": slice(0, 8), "test": slice(8, 12)}
    parts = {split: a_set(pictures, each).rename_columns(names) for split, each in rows.items()}
    source = saved(tmp_path / "splits", parts)
    assert_read(open_images(source, columns="user=ward"), pictures)
    test = open_images(source, splits=["test"], columns="user=ward")
    assert (test.images(slice(None)) == pictures.pixels[8:]).all()
    assert test.image_name(1) == "test 1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_image_folder_and_one_with_metadata(tmp_path: Path, pictures) -> None:
    lines = ["file_name,finding,ward"]
    for k, file in enumerate(pictures.files):
        put(tmp_path / "a" / pictures.splits[k] / pictures.labels[k] / f"{k:02d}.png", file)
        put(tmp_path / "b" / f"{k}.png", file)
        lines.append(f"{k}.png,{pictures.labels[k]},{pictures.users[k]}")
    (tmp_path / "b" / "metadata.csv").write_text("\n".join(lines) + "\n")
    for name, columns in (("a", None), ("b", "label=finding,user=ward")):
        images = open_images(f"hf:{tmp_path / name}", columns=columns)
        rows = [int(Path(images.image_name(k)).stem) for k in range(12)]
        assert sorted(rows) == list(range(12))
        assert (images.images(slice(None)) == pictures.pixels[rows]).all()
        assert images.labels.tolist() == [pictures.numbers[row] for row in rows]
        assert images.class_names == CLASSES
        if name == "a":
            assert images.split.tolist() == pictures.split_numbers
    assert images.user_names == ("ward A", "ward B", "ward C")
    gc.collect()  # the library leaves a file open


READ = """
import socket, sys
def refuse(*args): raise SystemExit("asked for the network")
socket.socket.connect = socket.getaddrinfo = refuse
from pretrain.sources import open_images
print([len(open_images(f"hf:{place}").images(slice(None))) for place in sys.argv[1:]])
"""


def test_nothing_is_copied_and_nobody_is_asked(tmp_path: Path, pictures) -> None:
    saved(tmp_path, a_set(pictures))
    put(tmp_path / "folder" / "cat" / "1.png")
    left = {name: tmp_path / name for name in ("HF_HOME", "HF_DATASETS_CACHE", "TMPDIR")}
    for place in left.values():
        place.mkdir()
    given = {name: str(place) for name, place in left.items()} | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", READ, str(tmp_path / "saved"), str(tmp_path / "folder")]
    done = subprocess.run(command, env=os.environ | given, capture_output=True, text=True)
    assert done.stdout == "[12, 1]\n", done.stderr
    assert [list(place.rglob("*")) for place in left.values()] == [[], [], []]
    assert len(list((tmp_path / "folder").rglob("*"))) == 2


def test_what_is_wrong_is_named(tmp_path: Path, pictures) -> None:
    (tmp_path / "empty").mkdir()
    for source, columns, rule in (
        (f"hf:{tmp_path}/empty", None, "empty must be a data set on disk, got"),
        (f"hf:{tmp_path}/none", None, "hf must be a directory, got"),
        (saved(tmp_path, datasets.Dataset.from_dict({"a": [1]})), None, "give path= .* columns a"),
        (saved(tmp_path / "b", a_set(pictures)), "label=b", "one of image, label, user, got 'b'"),
    ):
        with pytest.raises(ValueError, match=rule):
            open_images(source, columns=columns)
    kinds = datasets.Features({"image": datasets.Image()})
    rows = {"image": [{"bytes": pictures.files[0], "path": None}, None]}
    images = open_images(saved(tmp_path / "rows", datasets.Dataset.from_dict(rows, features=kinds)))
    with pytest.raises(ValueError, match="row 1 must hold an image's bytes or its path, got none"):
        images.images(slice(None))


@pytest.mark.parametrize(
    ("other", "names", "rule"),
    [
        ({"unsupervised": [-1, -1]}, ORDER, r"one of .* pass --splits .*, got 'unsupervised'"),
        ({"a": [0, 1], "b": [1, 1], "test": [1, 0]}, ORDER, "got 'a', 'b'"),
        ({"validation": [0, -1]}, ORDER, r"where -1 is none, got -1 in row 3 \(validation 1\)"),
        *(
            ({"test": [0, 1]}, names, r"classes of split test must be .*--splits .* got \(")
            for names in (ORDER[::-1], ORDER[:2], ("Owl", "dog", "cat"))
        ),
    ],
)
def test_splits_that_are_not_asked_for_are_not_looked_at(tmp_path, other, names, rule) -> None:
    parts = {name: data_set(labels, names) for name, labels in other.items()}
    source = saved(tmp_path, {"train": data_set([0, 1], ORDER)} | parts)
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    for name in other:
        for file in (tmp_path / "saved" / name).iterdir():
            file.write_bytes(b"damaged")
    images = open_images(source, splits=["train"])
    assert (images.labels.tolist(), images.class_names) == ([0, 1], ORDER)
    with pytest.raises(ValueError, match=r"splits must be of .*, got \['evaluation'\]"):
        open_images(source, splits=["evaluation"])


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
    images = open_images(shards, classes=CLASSES)
    assert_read(images, pictures)
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
    strange = {f"{k}{end}": BLACK for k in range(3) for end in (".png", ".cls.user")}
    assert not open_images(tar(tmp_path / "s.tar", strange)).labelled
    added = {"._0.png": b"x", "__MACOSX/0.png": b"x", "@eaDir/0.png": BLACK}  # by systems
    images = open_images(tar(tmp_path / "s.tar", {"0.png": BLACK, "0.cls": b"a"} | added))
    assert (len(images), len(images.skipped)) == (1, 3)


def test_names_longer_than_a_tar_s_field_and_metadata_of_a_sample(tmp_path: Path) -> None:
    name = "folder/" * 30 + "ü" * 60
    fields = json.dumps({"label": "owl", "user": 17, "split": "validation"}).encode()
    images = open_images(tar(tmp_path / "s.tar", {f"{name}.png": BLACK, f"{name}.json": fields}))
    assert images.image_name(0) == f"s.tar/{name}.png"
    assert images.images(slice(None)).shape == (1, 3, 4, 4)
    assert (images.class_names, images.user_names) == (("owl",), ("17",))
    assert images.split.tolist() == [2]


def together(*keys: str, pictures) -> dict[str, bytes]:
    members = {}
    for key, file, label in zip(keys, pictures.files, pictures.labels, strict=False):
        members |= {f"{key}.png": file, f"{key}.cls": label.encode()}
    return members


@pytest.mark.parametrize(
    ("members", "rule"),
    [
        ({"0.png": BLACK, "0.json": b"{"}, r"0\.json must be text, got"),
        ({"0.png": BLACK, "0.json": b"[]"}, r"0\.json must be a JSON object, got list"),
        ({"0.png": BLACK, "0.cls": b"\xff"}, r"0\.cls must be text, got"),
        ({"0.png": BLACK, "0.cls": bytes(1 << 21)}, r"0\.cls must have <= 1048576"),
        ({"0.txt": b""}, "must hold at least one image, got none"),
        (
            {"0.png": BLACK, "0.cls": b"1", "0.json": b'{"cls": 2}'},
            r"0\.json must have the cls of the sample's other member, 1, got 2",
        ),
        (TWICE, r"must hold every name once, in any case, got 0\.PNG again"),
        (PAIRED, r"img-0\.png without cls and s\.tar/lab-0 with it"),
        (APART, r"img/0\.png without cls and s\.tar/lab/0 with it"),
        *((dict.fromkeys(names, BLACK), DOT) for names in DOTS),  # does not join pictures
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


def test_members_that_lie_apart_are_one_sample(tmp_path: Path, pictures) -> None:
    whole = together(*"0123", pictures=pictures)
    for order in (sorted(whole, key=lambda name: name[2:]), sorted(whole, reverse=True)):
        images = open_images(tar(tmp_path / "s.tar", {name: whole[name] for name in order}))
        found = {images.image_name(k): images.class_names[images.labels[k]] for k in range(4)}
        assert found == {f"s.tar/{k}.png": pictures.labels[k] for k in range(4)}
        for row in range(4):
            k = int(images.image_name(row)[6])
            assert (images.images(slice(row, row + 1))[0] == pictures.pixels[k]).all()
    for keys in ("site.v1/{}", "./{}", "a.b/c.d/{}"):  # dots in folders are of the folder
        members = together(*map(keys.format, range(4)), pictures=pictures)
        assert open_images(tar(tmp_path / "s.tar", members)).labels.tolist() == [0, 1, 2, 0]
    two = {"\u00fc.png": BLACK, "u\u0308.CLS": b"cat", "b.PNG": BLACK, "b.cls": b"dog"}
    assert open_images(tar(tmp_path / "s.tar", two)).labels.tolist() == [0, 1]
