"""`join` with pictures: they become the rows of `start` and `report`, by the agreed encoder."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from embed import EmbeddingSet, PublicTransform
from embed.run import Run
from train_distributed.commands.federation import Join
from train_distributed.commands.federation.embedding import Pictures, own_set
from train_distributed.federation.documents.party import Party

CLASSES = ("cat", "dog", "owl")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Seven pictures of two of three classes, of several sizes."""
    draw = np.random.default_rng(0)
    for number in range(7):
        folder = tmp_path / "photos" / CLASSES[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 256, (40 + number, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def transform(photos: Path, tmp_path: Path) -> Path:
    """Public transform of the shipped encoder."""
    draw = np.random.default_rng(1)
    (tmp_path / "flat").mkdir()
    for number in range(20):
        pixels = draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{number}.png")
    Run(data=str(tmp_path / "flat"), layout="flat", resize=32, out=tmp_path / "public").run()
    fitted = PublicTransform.fit(EmbeddingSet.open(tmp_path / "public"), components=5)
    fitted.save(tmp_path / "transform.safetensors")
    return tmp_path / "transform.safetensors"


def test_pictures_become_the_rows_that_are_counted_and_sent(
    photos: Path, transform: Path, tmp_path: Path
) -> None:
    given = {"pictures": photos, "class_names": CLASSES, "resize": 32}
    Run(
        data=str(photos), layout="class", class_names=CLASSES, resize=32, out=tmp_path / "by-hand"
    ).run()
    expected = EmbeddingSet.open(tmp_path / "by-hand")
    for name, more in (("a", {"transform": transform}), ("b", {"encoder": "simclr-small"})):
        folder = tmp_path / name
        Join(folder, name, images=Pictures(**given, **more)).run()  # pyright: ignore[reportArgumentType]
        assert Party.load(folder / f"{name}.party.json").rows == 7
        own = own_set(folder, None)
        assert own is not None
        assert own == folder / "embeddings"
        found = EmbeddingSet.open(own)
        np.testing.assert_array_equal(found.embeddings, expected.embeddings)
        np.testing.assert_array_equal(found.labels, expected.labels)
        assert found.meta["class_names"] == list(CLASSES)
        for field in ("encoder", "encoder_hash", "weights", "preprocess"):
            assert found.meta[field] == expected.meta[field]
        Join(folder, name, images=Pictures(**given, **more)).run()  # pyright: ignore[reportArgumentType]
        assert own_set(folder, tmp_path / "other") == tmp_path / "other"
    assert own_set(tmp_path, None) is None


def test_pictures_without_classes_or_encoder_are_refused(
    photos: Path, transform: Path, tmp_path: Path
) -> None:
    given = {"pictures": photos, "class_names": CLASSES}
    for images, more, words in (
        ({"pictures": photos, "transform": transform}, {}, "class_names must be given"),
        (given, {}, "encoder or transform must be given"),
        (given | {"transform": transform, "encoder": "timm:resnet18"}, {}, "weights must be"),
        (given, {"rows": 7}, "rows must be left out with pictures"),
        (given, {"embeddings": tmp_path}, "embeddings must be left out with pictures"),
        (given, {"server": True}, "pictures must be left out for a server"),
    ):
        with pytest.raises(ValueError, match=words):
            Join(tmp_path / "me", "me", images=Pictures(**images), **more).run()  # pyright: ignore[reportArgumentType]
        assert not (tmp_path / "me" / "me.party.json").exists()


def test_another_order_of_the_classes_is_found_when_one_joins(
    knowing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a set, of one that was embedded before, and against the guesses of the transform."""
    draw = np.random.default_rng(0)
    rows, labels = draw.normal(size=(12, 6)).astype(np.float32), np.arange(12) % 3
    for names in (("a", "b", "c"), ("b", "a", "c")):
        meta = {"class_names": list(names)}
        place = tmp_path / names[0] / "embeddings"
        EmbeddingSet(embeddings=rows, labels=labels, meta=meta).save(place)
        Join(tmp_path / names[0], "me", embeddings=place).run()
        assert f"classes in this order: {', '.join(names)}\n" in capsys.readouterr().out
    good, other = tmp_path / "a" / "embeddings", tmp_path / "b"
    kept = other / "embeddings"
    for images, more, words in (
        ({"class_names": ("a", "b", "c")}, {"embeddings": kept}, r"class_names must be .*'b', 'a'"),
        ({"class_names": ("b", "a")}, {"embeddings": kept}, r"class_names must be .*'b', 'a', 'c'"),
        ({"class_names": ("A", "B", "C")}, {"embeddings": good}, r"class_names must be .*'a', 'b'"),
        ({"transform": knowing}, {"embeddings": kept}, r"names must be those .* guesses of"),
        (
            {"pictures": tmp_path, "class_names": ("a", "b", "c"), "encoder": "simclr-small"},
            {},
            r"class_names must be .*'b', 'a'",
        ),
    ):
        with pytest.raises(ValueError, match=words) as refused:
            Join(other, "again", images=Pictures(**images), **more).run()  # pyright: ignore[reportArgumentType]
        assert "\n" not in str(refused.value)
        assert not (other / "again.party.json").exists()
    known = Pictures(class_names=("a", "b", "c"), transform=knowing)
    Join(tmp_path / "a", "again", embeddings=good, images=known).run()
