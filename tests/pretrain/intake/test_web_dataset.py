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


def test_shards(shards: str, pictures, tmp_path: Path) -> None:
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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_library_reads_the_same(shards: str, pictures) -> None:
    own = open_images(shards)
    theirs = wds.WebDataset(shards.removeprefix("wds:"), shardshuffle=False)
    samples = list(theirs)
    assert len(samples) == len(own) == 12
    for row, sample in enumerate(samples):
        pixels = np.asarray(Image.open(io.BytesIO(sample["png"])))
        assert (own.images(slice(row, row + 1))[0] == pixels.transpose(2, 0, 1)).all()
        assert own.labels[row] == int(sample["cls"])
    del theirs
    gc.collect()  # the library leaves its files open


def tar(path: Path, members: dict[str, bytes]) -> str:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return f"wds:{path}"


def test_samples_of_several_pictures_and_of_none(tmp_path: Path, pictures) -> None:
    a, b, c = pictures.files[:3]
    members = {"0.left.png": a, "0.right.png": b, "readme": b"", "1.cls": b"3", "2.right.png": c}
    with pytest.raises(ValueError, match=r"must have one picture .* got 0\.left\.png and 0\.right"):
        open_images(tar(tmp_path / "s.tar", members))
    right = open_images(f"wds:{tmp_path}/s.tar", columns="path=right.png,label=")
    assert tuple(name for name, _ in right.skipped) == ("s.tar/readme", "s.tar/1")
    assert (right.images(slice(None)) == pictures.pixels[[1, 2]]).all()


def test_names_longer_than_a_tar_s_field(tmp_path: Path, pictures) -> None:
    name = "folder/" * 30 + "ü" * 60
    images = open_images(tar(tmp_path / "s.tar", {f"{name}.png": pictures.files[0]}))
    assert images.image_name(0) == f"s.tar/{name}.png"
    assert (images.images(slice(None)) == pictures.pixels[:1]).all()


def test_what_is_wrong_is_named(tmp_path: Path, pictures, shards: str) -> None:
    place = tmp_path / "s-000.tar"
    with pytest.raises(
        ValueError, match=r"columns must give label= one of cls, finding.*, got 'age'"
    ):
        open_images(shards, columns="label=age")
    for columns, rule in (
        ({"0.png": pictures.files[0], "0.json": b"{"}, r"0\.json must be text, got"),
        ({"0.png": pictures.files[0], "0.json": b"[]"}, r"0\.json must be a JSON object, got list"),
        ({"0.png": pictures.files[0], "0.cls": b"\xff"}, r"0\.cls must be text, got"),
        ({"0.png": pictures.files[0], "0.cls": bytes(1 << 21)}, r"0\.cls must have <= 1048576"),
        ({"0.txt": b""}, "must hold at least one image, got none"),
    ):
        with pytest.raises(ValueError, match=rule):
            open_images(tar(tmp_path / "bad.tar", columns))
    images = open_images(tar(tmp_path / "bad.tar", {"0.png": b"?"}))
    with pytest.raises(UnreadableImage, match=r"bad\.tar/0\.png must be a readable image, got 1"):
        images.images(slice(None))
    whole = place.read_bytes()
    end = len(whole.rstrip(b"\0"))
    for length in (*range(0, 3000, 100), *range(0, end, 512)):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cut\.tar must be a whole tar file"):
            open_images(f"wds:{tmp_path}/cut.tar")
    (tmp_path / "z.tar.gz").write_bytes(gzip.compress(whole))
    for name, content in (("z.tar.gz", gzip.compress(whole)), ("n.tar", b"nothing" * 100)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="must be a whole tar file, uncompressed: "):
            open_images(f"wds:{tmp_path}/{name}")


def test_metadata_of_a_sample(tmp_path: Path, pictures) -> None:
    fields = {"label": "owl", "user": 17, "split": "validation"}
    members = {"0.png": pictures.files[0], "0.json": json.dumps(fields).encode()}
    images = open_images(tar(tmp_path / "s.tar", members))
    assert images.class_names == ("owl",)
    assert images.user_names == ("17",)
    assert images.split.tolist() == [2]


def sample(pictures, k: int, label: str = "cls") -> dict[str, bytes]:
    return {"png": pictures.files[k], label: pictures.labels[k].encode()}


def together(samples: dict[str, dict[str, bytes]]) -> dict[str, bytes]:
    return {f"{key}.{end}": held for key, each in samples.items() for end, held in each.items()}


@pytest.mark.parametrize("keys", ["scan 1.{} (copy)", "2026.12.{:02}", "v1.2/a.{}", ".{}"])
def test_a_dot_in_a_name_does_not_join_pictures(tmp_path: Path, pictures, keys: str) -> None:
    members = together({keys.format(k): sample(pictures, k) for k in range(4)})
    rule = r"must (have one picture|hold at least one image)"
    with pytest.raises(ValueError, match=rule):
        open_images(tar(tmp_path / "s.tar", members))


def test_dots_in_folders_are_of_the_folder(tmp_path: Path, pictures) -> None:
    for keys in ("site.v1/{}", "./{}", "a.b/c.d/{}"):
        members = together({keys.format(k): sample(pictures, k) for k in range(4)})
        assert open_images(tar(tmp_path / "s.tar", members)).labels.tolist() == [0, 1, 2, 0]


def test_members_that_lie_apart_are_one_sample(tmp_path: Path, pictures) -> None:
    whole = together({str(k): sample(pictures, k) for k in range(4)})
    for order in (sorted(whole, key=lambda name: name[2:]), sorted(whole, reverse=True)):
        images = open_images(tar(tmp_path / "s.tar", {name: whole[name] for name in order}))
        found = {images.image_name(k): images.class_names[images.labels[k]] for k in range(4)}
        assert found == {f"s.tar/{k}.png": pictures.labels[k] for k in range(4)}
        for row in range(4):
            k = int(images.image_name(row)[6])
            assert (images.images(slice(row, row + 1))[0] == pictures.pixels[k]).all()
    two = {
        "\u00fc.png": pictures.files[0],
        "u\u0308.CLS": b"cat",
        "b.PNG": pictures.files[1],
        "b.cls": b"dog",
    }
    assert open_images(tar(tmp_path / "s.tar", two)).labels.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"img-{}": "png", "lab-{}": "cls"}, r"img-0\.png without cls and s\.tar/lab-0 with it"),
        ({"img/{}": "png", "lab/{}": "cls"}, r"img/0\.png without cls and s\.tar/lab/0 with it"),
        ({"{}": "png", "{}.cls": "user"}, None),
    ],
)
def test_labels_without_pictures_beside_pictures_without_labels(
    tmp_path: Path, pictures, changes: dict[str, str], rule: str | None
) -> None:
    members = {
        f"{key.format(k)}.{end}": sample(pictures, k).get(end, b"x")
        for key, end in changes.items()
        for k in range(3)
    }
    source = tar(tmp_path / "s.tar", members)
    if rule is None:
        assert not open_images(source).labelled
        return
    with pytest.raises(ValueError, match=rule):
        open_images(source)
    images = open_images(source, columns="label=")
    assert (len(images), len(images.skipped)) == (3, 3)


def test_a_name_twice_and_what_systems_add(tmp_path: Path, pictures) -> None:
    more = {"0.png": pictures.files[0], "0.cls": b"a", "0.PNG": pictures.files[1]}
    with pytest.raises(
        ValueError, match=r"must hold every name once, in any case, got 0\.PNG again"
    ):
        open_images(tar(tmp_path / "s.tar", more))
    added = {"._0.png": b"x", "__MACOSX/0.png": b"x", "@eaDir/0.png": pictures.files[1]}
    images = open_images(
        tar(tmp_path / "s.tar", {"0.png": pictures.files[0], "0.cls": b"a"} | added)
    )
    assert (len(images), len(images.skipped)) == (1, 3)


@pytest.mark.parametrize("mark", ["gz", "bz2", "xz"])
def test_packed_shards_are_named(tmp_path: Path, mark: Any) -> None:
    mode: Any = f"w:{mark}"
    with tarfile.open(tmp_path / "s.tar", mode) as file:
        file.addfile(tarfile.TarInfo("0.png"))
    with pytest.raises(ValueError, match="must be a whole tar file, uncompressed: unpack this"):
        open_images(f"wds:{tmp_path}/s.tar")
