"""Pictures in, classes out: the same as of their embeddings, by the right encoder or not at all."""

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from embed import EmbeddingSet, PublicTransform
from embed.run import Run as EmbedRun
from pretrain.encoder import save_encoder
from pretrain.resnet import ResNetConfig, SmallResNet
from train_distributed import Privacy, Release, release
from train_distributed.released.predictions import HEADER

COLOURS = {"blue": (20, 40, 220), "green": (30, 200, 50), "red": (220, 30, 20)}
SIZE, ROWS = 8, 40


def draw(folder: Path, rows: int, seed: int, size: int = SIZE) -> Path:
    """Class folders of noisy pictures, each class of one colour."""
    rng = np.random.default_rng(seed)
    for name, colour in COLOURS.items():
        (folder / name).mkdir(parents=True)
        for row in range(rows):
            noise = rng.normal(0, 40, (size, size, 3))
            pixels = np.clip(np.array(colour) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{row:03d}.png")
    return folder


def encoder(path: Path, seed: int) -> Path:
    generator = torch.Generator().manual_seed(seed)
    save_encoder(SmallResNet(ResNetConfig((4, 6), (1, 1)), generator), path)
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Pictures, a checkpoint, their embeddings, and a model that carries its encoder."""
    root = tmp_path_factory.mktemp("place")
    checkpoint = encoder(root / "network.safetensors", 0)
    for name, seed in (("private", 0), ("public", 1), ("new", 2)):
        pictures = draw(root / f"{name}_pictures", ROWS, seed)
        EmbedRun(data=str(pictures), encoder=str(checkpoint), out=root / name).run()
    learn(root, root / "model")
    shutil.copy(checkpoint, root / "model" / "encoder.safetensors")
    return root


def learn(root: Path, out: Path) -> None:
    private = EmbeddingSet.open(root / "private")
    transform = PublicTransform.fit(EmbeddingSet.open(root / "public"), components=4)
    private = replace(private, users=np.zeros(len(private), np.int64))
    released = release(private, "discriminant", Privacy(50.0, 1e-5), transform=transform, sums=1)
    released.save(out)


def table(path: Path) -> list[dict[str, str]]:
    with (path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_pictures_are_classified_as_their_embeddings_are(call, place, tmp_path) -> None:
    common = ["predict", "--model", str(place / "model")]
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    code, said, error = call(*common, "--data", str(place / "new_pictures"), "--out", one)
    assert (code, error) == (0, "")
    assert f"rows                       {3 * ROWS}" in said
    assert call(*common, "--embeddings", str(place / "new"), "--out", two)[0] == 0
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["predictions.csv"]
    first, second = table(tmp_path / "one"), table(tmp_path / "two")
    assert list(first[0]) == list(HEADER)
    for pictures, rows in zip(first, second, strict=True):
        assert {**pictures, "path": ""} == {**rows, "path": ""}
        assert Path(pictures["path"]).name == Path(rows["path"]).name
    released = Release.load(place / "model")
    rows = EmbeddingSet.open(place / "new").embeddings
    shares, scores = released.predict_proba(rows), released.scores(rows)
    for row, p, score in zip(first, shares, scores, strict=True):
        order = score.argsort(descending=True)  # probabilities that round to 0 have none
        names = [released.class_names[k] for k in order]
        assert [row["class"], row["second"], row["third"]] == names
        found = [row[c] for c in ("probability", "second_probability", "third_probability")]
        assert np.allclose([float(x) for x in found], p[order], atol=1e-6)
    right = [row["class"] == Path(row["path"]).parent.name for row in first]
    assert np.mean(right) > 0.9


def test_labels_that_are_there_are_compared(call, place, tmp_path) -> None:
    common = ["predict", "--model", str(place / "model"), "--evaluate"]
    out = tmp_path / "out"
    code, said, _ = call(*common, "--data", str(place / "new_pictures"), "--out", str(out))
    assert code == 0
    names = ["confusion.png", "metrics.json", "predictions.csv"]
    assert sorted(p.name for p in out.iterdir()) == names
    metrics = json.loads((out / "metrics.json").read_text())
    assert metrics["rows"] == 3 * ROWS
    assert metrics["majority_baseline"] == pytest.approx(1 / 3)
    assert metrics["accuracy"] > 0.9
    assert metrics["rows_by_split"] == {"train": 3 * ROWS}
    assert "no epsilon covers" in metrics["of"]
    assert "posterior of Gaussian classes" in metrics["probabilities"]
    assert f"accuracy                   {metrics['accuracy']:.4f}" in said
    again = call(*common, "--embeddings", str(place / "new"), "--out", str(tmp_path / "two"))
    assert again[0] == 0
    assert json.loads((tmp_path / "two" / "metrics.json").read_text()) == metrics


def test_classes_in_another_order_are_compared_by_name(call, place, tmp_path) -> None:
    rows = EmbeddingSet.open(place / "new")
    turned = {"class_names": ["red", "blue", "green"], "classes": "declared"}
    labels = np.array([1, 2, 0])[rows.labels]
    EmbeddingSet(
        embeddings=rows.embeddings, labels=labels, split=rows.split, meta=rows.meta | turned
    ).save(tmp_path / "turned")
    common = ["predict", "--model", str(place / "model"), "--evaluate"]
    for name, source in (("one", place / "new"), ("two", tmp_path / "turned")):
        assert call(*common, "--embeddings", str(source), "--out", str(tmp_path / name))[0] == 0
    one, two = (json.loads((tmp_path / n / "metrics.json").read_text()) for n in ("one", "two"))
    assert one == two


def test_pictures_of_another_size_are_brought_to_that_of_the_model(call, place, tmp_path) -> None:
    pictures = draw(tmp_path / "large", 5, 3, size=24)
    common = ["predict", "--model", str(place / "model"), "--out", str(tmp_path / "out")]
    assert call(*common, "--data", str(pictures))[0] == 0
    assert len(table(tmp_path / "out")) == 15
    pixels = np.zeros((4, 24, 24, 3), np.uint8)
    np.savez(tmp_path / "large.npz", x_test=pixels, y_test=np.arange(4) % 3)
    common += ["--data", str(tmp_path / "large.npz"), "--overwrite"]
    assert call(*common)[0] == 0
    assert len(table(tmp_path / "out")) == 4


def test_images_without_labels_are_classified(call, place, tmp_path) -> None:
    pixels = np.tile(np.array(COLOURS["green"], np.uint8), (7, SIZE, SIZE, 1))
    np.savez(tmp_path / "new.npz", x_test=pixels)
    common = ["predict", "--model", str(place / "model"), "--data", str(tmp_path / "new.npz")]
    assert call(*common, "--out", str(tmp_path / "out"))[0] == 0
    assert [row["class"] for row in table(tmp_path / "out")] == ["green"] * 7


def test_unreadable_pictures_have_a_line_of_their_own(call, place, tmp_path) -> None:
    pictures = draw(tmp_path / "pictures", 4, 5)
    whole, some = str(tmp_path / "whole"), str(tmp_path / "some")
    common = ["predict", "--model", str(place / "model"), "--data", str(pictures), "--evaluate"]
    assert call(*common, "--out", whole)[0] == 0
    damaged = ("blue/000.png", "green/002.png", "red/003.png")  # the first and the last as well
    for name, content in zip(damaged, (b"", b"no picture", b"\x89PNG\r\n\x1a\n"), strict=True):
        (pictures / name).write_bytes(content)
    code, _, error = call(*common, "--out", some)
    assert (code, "blue/000.png must be a readable image" in error) == (2, True)
    code, said, error = call(*common, "--out", some, "--skip-unreadable")
    assert (code, error) == (0, "")
    assert f"{'rows':26} 12\n{'unreadable':26} 3\n" in said
    first, second = table(tmp_path / "whole"), table(tmp_path / "some")
    assert list(second[0]) == [*HEADER, "unreadable"]
    for before, after in zip(first, second, strict=True):
        reason = after.pop("unreadable")
        if after["path"] in damaged:
            assert f"{after['path']} must be a readable image" in reason
            assert after == dict.fromkeys(HEADER, "") | {"path": before["path"]}
        else:
            assert (after, reason) == (before, "")
    metrics = json.loads((tmp_path / "some" / "metrics.json").read_text())
    assert (metrics["rows"], metrics["rows_by_split"]) == (9, {"train": 9})
    assert np.sum(metrics["confusion"]) == 9


def test_nothing_readable_is_an_error(call, place, tmp_path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "1.png").write_bytes(b"")
    common = ["predict", "--model", str(place / "model"), "--out", str(tmp_path / "out")]
    code, _, error = call(*common, "--data", str(tmp_path / "pictures"), "--skip-unreadable")
    assert code == 2
    assert "must hold a readable image, got none" in error


def test_a_model_of_rows_of_an_unknown_encoder_takes_embeddings_only(call, place, tmp_path) -> None:
    shutil.copytree(place / "model", tmp_path / "unknown")
    model = tmp_path / "unknown" / "model.safetensors"
    with safe_open(model, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {name: text for name, text in file.metadata().items() if name != "encoding"}
    save_file(tensors, model, metadata)
    common = ["predict", "--model", str(tmp_path / "unknown"), "--out", str(tmp_path / "out")]
    code, _, error = call(*common, "--data", str(place / "new_pictures"))
    assert code == 2
    assert "release must say which encoder its embeddings came from" in error
    assert call(*common, "--embeddings", str(place / "new"))[0] == 0


def test_names_that_need_quotes_survive(call, place, tmp_path) -> None:
    odd = ['comma, "quote".png', "new\nline.png", "=1+1.png", "ü.png"]
    (tmp_path / "odd" / "red").mkdir(parents=True)
    for name in odd:
        shutil.copy(place / "new_pictures" / "red" / "000.png", tmp_path / "odd" / "red" / name)
    common = ["predict", "--model", str(place / "model"), "--out", str(tmp_path / "out")]
    assert call(*common, "--data", str(tmp_path / "odd"))[0] == 0
    found = {row["path"].removeprefix(f"{tmp_path}/odd/") for row in table(tmp_path / "out")}
    assert {Path(name).name for name in found} == set(odd)


def test_run_carries_the_encoder_if_asked(call, place, tmp_path) -> None:
    common = ["simulate", "--embeddings", str(place / "private"), "--public", str(place / "public")]
    common += ["--epsilon", "9", "--components", "4", "--users", "6", "--with-encoder"]
    code, _, error = call(*common, "--out", str(tmp_path / "none"))
    assert code == 2
    assert "encoder must be given by name and weights" in error
    assert not (tmp_path / "none").exists()
    network = str(place / "network.safetensors")
    code, _, error = call(*common, network, "--out", str(tmp_path / "run"))
    assert (code, error) == (0, "")
    assert (tmp_path / "run" / "encoder.safetensors").is_file()
    common = ["predict", "--model", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    assert call(*common, "--data", str(place / "new_pictures"))[0] == 0


def carried_and_named(call, place: Path, to: Path, encoder: str, weights: str | None) -> list[str]:
    """A model carries its encoder, and takes it by name; options that show it new pictures."""
    for kind in ("private", "public"):
        pictures = str(place / f"{kind}_pictures")
        EmbedRun(data=pictures, encoder=encoder, weights=weights, out=to / kind).run()
    sets = ["--embeddings", str(to / "private"), "--public", str(to / "public")]
    sets += ["--components", "4", "--users", "6", "--epsilon", "9"]
    carried = "+".join([str(place / "network.safetensors"), *([weights] if weights else [])])
    sets += ["--with-encoder", carried]
    code, _, error = call("simulate", *sets, "--out", str(to / "model"))
    assert (code, error) == (0, "")
    common = ["predict", "--model", str(to / "model"), "--data", str(place / "new_pictures")]
    assert call(*common, "--out", str(to / "one"))[0] == 0
    (to / "model" / "encoder.safetensors").unlink()
    named = ["--encoder", encoder, *(["--weights", weights] if weights else [])]
    assert call(*common, *named, "--out", str(to / "two"))[0] == 0
    assert table(to / "one") == table(to / "two")
    return common


def test_a_mirrored_encoder_is_carried_and_named(call, place, tmp_path) -> None:
    """The prefix is of the name: it must not be lost where a file stands for the encoder."""
    network = place / "network.safetensors"
    common = carried_and_named(call, place, tmp_path, f"mirrored:{network}", None)
    code, _, error = call(*common, "--encoder", str(network))
    assert code == 2
    assert "encoder must be the one that the model learned with, mirrored:network.safe" in error
    plain = ["--embeddings", str(place / "private"), "--public", str(tmp_path / "public")]
    code, _, error = call("simulate", *plain, "--epsilon", "9", "--users", "6")
    assert code == 2
    assert "must be embedded by one encoder" in error


def test_encoders_side_by_side_are_carried_and_named(call, place, tmp_path) -> None:
    """By checkpoint and by name, each with its own size; sets joined later have the same rows."""
    name = f"concat:{place / 'network.safetensors'}@12+timm:resnet10t@32"
    carried_and_named(call, place, tmp_path, name, "random")
    assert call("card", "--model", str(tmp_path / "model"), "--out", str(tmp_path / "card"))[0] == 0
    page = (tmp_path / "card" / "card.html").read_text()
    assert "concat:network.safetensors@12+timm:resnet10t@32" in page
