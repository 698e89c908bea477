"""ONNX and torch.export files, run by their own runtimes, against `predict`."""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch.nn import functional

from embed import EmbeddingSet, PublicTransform
from embed.encoding import Encoding
from pretrain.encoder import build_encoder, encoder_hash, save_encoder
from pretrain.encoders.base import Concat
from pretrain.intake.decode import squared
from pretrain.preprocess import Preprocess
from pretrain.resnet import ResNetConfig, SmallResNet
from train_distributed import Privacy, Release, release
from train_distributed.released.export import (
    _Brought,
    _Pixels,
    described,
    largest_difference,
    picture_size,
    run_onnx,
    run_torch,
    save_onnx,
    save_torch,
    scaling_matrix,
    some_pictures,
    trace,
)
from train_distributed.released.pictures import encoding_of, released_encoder

NAMES = ("blue", "green", "red")
PARITY, DARK = 1e-5, 0.3
KINDS = {"onnx": (save_onnx, run_onnx), "pt2": (save_torch, run_torch)}


def pictures(
    rows: int, size: tuple[int, int], seed: int, *, light: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Noisy shapes of three colours, and their classes."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    low = rng.normal(0, 60, (rows, 3, 4, 4)) + 180 * np.eye(3)[labels][:, :, None, None] + 40
    smooth = functional.interpolate(torch.from_numpy(low), size=size, mode="bilinear")
    noisy = smooth.numpy() + rng.normal(0, 15, (rows, 3, *size))
    return np.clip(light * noisy, 0, 255).astype(np.uint8), labels


def learned(
    encoder, preprocess: Preprocess, size: tuple[int, int], method: str, *, light: float = 1.0
) -> Release:
    """A private model of pictures of this light, with its transform fitted to others."""
    sets = []
    for seed, own in ((0, light), (1, 1.0)):
        pixels, labels = pictures(120, size, seed, light=own)
        with torch.inference_mode():
            parts = torch.from_numpy(pixels).split(30)
            rows = torch.cat([encoder(preprocess(part)) for part in parts]).numpy()
        meta = {"class_names": list(NAMES), "image_shape": [3, *size]}
        known = Encoding(
            encoder="test",
            encoder_hash=encoder_hash(encoder),
            weights="random",
            preprocess=preprocess,
        )
        meta |= known.to_json()
        sets.append(EmbeddingSet(embeddings=rows, labels=labels, users=labels * 0, meta=meta))
    transform = PublicTransform.fit(sets[1], components=8)
    given: dict[str, Any] = {"sums": 1 if light == 1.0 else 2}
    given |= {"noise": "float", "generator": torch.Generator().manual_seed(0)}
    return release(sets[0], method, Privacy(20.0, 1e-5), transform=transform, **given)


def check(kind: str, released: Release, encoder, size: tuple[int, int], path: Path) -> None:
    """Asserts that a file agrees with `predict`, in batches of several sizes."""
    program = KINDS[kind][1](path)
    shown = [pictures(30, size, 7, light=light)[0] for light in (1.0, DARK)]
    pixels = np.concatenate([*shown, some_pictures(size)])
    for n in (1, 2, len(pixels)):
        difference, classes = largest_difference(released, encoder, program, pixels[:n])
        assert difference <= PARITY
        assert classes == 0


@pytest.fixture(scope="module")
def small() -> SmallResNet:
    generator = torch.Generator().manual_seed(0)
    return SmallResNet(ResNetConfig((8, 12), (1, 1)), generator).eval()


SHRUNK, SIZE = Preprocess(image_size=12, crop=0.875), (20, 17)


@pytest.fixture(scope="module")
def files(small, tmp_path_factory) -> tuple[Release, Path]:
    """One model, and the folder of both its files."""
    folder = tmp_path_factory.mktemp("files")
    released = learned(small, SHRUNK, SIZE, "discriminant")
    program, told = trace(released, small, SIZE), described(released, SIZE)
    for kind, (save, _) in KINDS.items():
        save(program, told, folder / f"model.{kind}")
    return released, folder


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_as_predict(files, small, kind: str) -> None:
    released, folder = files
    check(kind, released, small, SIZE, folder / f"model.{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_of_a_model_about_a_centre_is_as_predict(tmp_path, small, kind: str) -> None:
    """Private pictures are darker than public ones, so that they have much in common."""
    released, path = learned(small, SHRUNK, SIZE, "discriminant", light=DARK), tmp_path / "model"
    assert released.report["common_share"] > 0.3
    assert 2 <= released.report["directions"] <= 8
    assert released.transform.directions is not None
    KINDS[kind][0](trace(released, small, SIZE), described(released, SIZE), path)
    check(kind, released, small, SIZE, path)


@pytest.mark.parametrize("kind", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_pictures_that_are_enlarged_and_inverted(tmp_path, small, kind: str) -> None:
    preprocess, path = Preprocess(image_size=24, invert=True), tmp_path / f"model.{kind}"
    released = learned(small, preprocess, SIZE, "discriminant")
    KINDS[kind][0](trace(released, small, SIZE), described(released, SIZE), path)
    check(kind, released, small, SIZE, path)


@pytest.mark.parametrize("kind", ["pt2", pytest.param("onnx", marks=pytest.mark.slow)])
def test_encoders_side_by_side_each_with_its_own_scaling(tmp_path, small, kind: str) -> None:
    joined = Concat([(small, SHRUNK), (small, Preprocess(image_size=24))]).eval()
    preprocess, path = Preprocess(invert=True), tmp_path / f"model.{kind}"
    released = learned(joined, preprocess, SIZE, "discriminant")
    KINDS[kind][0](trace(released, joined, SIZE), described(released, SIZE), path)
    check(kind, released, joined, SIZE, path)
    assert joined.scaled == [part.scaled for part in joined.prepared]  # the encoder is as before


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "preprocess", "size"),
    [
        ("simclr-small", Preprocess(), (32, 32)),
        ("simclr-small", Preprocess(image_size=32, crop=0.875), (60, 45)),
        ("mirrored:simclr-small", Preprocess(), (32, 32)),
        ("concat:timm:resnet10t@48+simclr-small", Preprocess(), (32, 32)),
        ("timm:mobilenetv3_small_050", Preprocess(image_size=96), (64, 64)),
        ("timm:vit_tiny_patch16_224", Preprocess(image_size=224), (256, 300)),
    ],
)
def test_a_file_with_a_known_encoder_is_as_predict(
    tmp_path, kind: str, name: str, preprocess: Preprocess, size: tuple[int, int]
) -> None:
    encoder = build_encoder(name, weights="random" if "timm" in name else None)
    released = learned(encoder, preprocess, size, "discriminant")
    path = tmp_path / f"model.{kind}"
    KINDS[kind][0](trace(released, encoder, size), described(released, size), path)
    check(kind, released, encoder, size, path)


@pytest.mark.parametrize("mode", ["bicubic", "bilinear", "nearest-exact"])
@pytest.mark.parametrize(("side", "target"), [(32, 128), (50, 32), (224, 96), (7, 5), (9, 9)])
def test_two_products_are_the_interpolation(mode: str, side: int, target: int) -> None:
    x = torch.rand(2, 3, side, 40, generator=torch.Generator().manual_seed(0))
    antialias = mode != "nearest-exact" and target < side
    options = {"antialias": antialias} if antialias else {}
    expected = functional.interpolate(x, size=(target, 23), mode=mode, **options)
    rows = scaling_matrix(side, target, mode, antialias=antialias)
    columns = scaling_matrix(40, 23, mode, antialias=antialias)
    assert torch.allclose(rows @ x @ columns.T, expected, atol=2e-6)


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess(),
        Preprocess(crop=0.5),
        Preprocess(image_size=20, invert=True),
        Preprocess(image_size=96, crop=0.875),
        Preprocess(image_size=33),
        Preprocess(image_size=(16, 24), crop=0.9),
        Preprocess(image_size=24, fit="shortest", resize=28, interpolation="bilinear"),
        Preprocess(image_size=24, fit="longest", border=(0.1, 0.5, 0.9)),
        Preprocess(image_size=(20, 30), fit="squash", interpolation="nearest"),
    ],
)
@pytest.mark.parametrize("size", [(33, 33), (50, 41), (64, 20)])
def test_pixels_are_prepared_alike(preprocess: Preprocess, size: tuple[int, int]) -> None:
    images = torch.from_numpy(some_pictures(size))
    found = _Pixels(preprocess, torch.zeros(1, 3, *size, dtype=torch.uint8))(images)
    assert torch.allclose(found, preprocess(images), atol=2e-6)


def test_a_border_goes_around_any_number_of_pictures() -> None:
    preprocess = Preprocess(image_size=24, fit="longest", border=(0.1, 0.5, 0.9))
    images = torch.from_numpy(some_pictures((40, 31)))
    shapes = ({0: torch.export.Dim("batch", min=1)},)
    network = _Pixels(preprocess, torch.zeros(1, 3, 40, 31, dtype=torch.uint8))
    program = torch.export.export(network, (images[:3],), dynamic_shapes=shapes).module()
    for n in (1, len(images)):
        assert torch.allclose(program(images[:n]), preprocess(images[:n]), atol=2e-6)


def test_files_say_what_they_are(files, small) -> None:
    released, folder = files
    told = described(released, SIZE)
    extra = {"release.json": ""}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch, of itself
        torch.export.load(folder / "model.pt2", extra_files=extra)
    assert json.loads(extra["release.json"]) == told
    assert told["class_names"] == list(NAMES)
    assert told["epsilon"] == 20.0
    assert told["encoding"]["encoder_hash"] == encoder_hash(small)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["class_names"]) == list(NAMES)
    assert metadata["neighbouring"].startswith("replace one record")
    assert json.loads(metadata["encoding"]) == told["encoding"]
    (pixels,) = session.get_inputs()
    assert (pixels.name, pixels.type, pixels.shape[1:]) == ("pixels", "tensor(uint8)", [3, *SIZE])
    assert isinstance(pixels.shape[0], str)  # any number of pictures


def test_the_size_is_that_of_the_training_pictures_or_as_asked(small) -> None:
    stored = learned(small, Preprocess(), (16, 16), "discriminant")
    assert picture_size(stored, None) == (16, 16)
    assert picture_size(stored, (32, 16)) == (32, 16)
    for asked in ((0, 3), (3, 100_000)):
        with pytest.raises(ValueError, match=r"input_size must be in \[1, 8192\]"):
            picture_size(stored, asked)
    assert stored.encoding is not None
    unknown = replace(stored, encoding=replace(stored.encoding, preprocess=Preprocess()))
    with pytest.raises(ValueError, match="input_size must be given for a model that knows none"):
        picture_size(unknown, None)


@pytest.mark.parametrize("size", [(16, 16), (40, 40), (50, 33), (9, 12), (16, 90), (61, 16)])
@pytest.mark.parametrize("taken", [(16, 16), (20, 14)])
def test_pictures_of_any_size_are_brought_to_it_in_the_file(
    small, tmp_path: Path, taken: tuple[int, int], size: tuple[int, int]
) -> None:
    """As Pillow does it when they are read."""
    released = learned(small, Preprocess(), taken, "discriminant")
    pixels = some_pictures(size)
    program = trace(released, small, size).module()
    classes, shares = program(torch.from_numpy(pixels))
    brought = np.stack([squared(each, taken) for each in pixels.transpose(0, 2, 3, 1).copy()])
    rows = small(torch.from_numpy(brought.transpose(0, 3, 1, 2).copy()) / 255)
    expected = released.predict_proba(rows.detach()).numpy()
    assert np.abs(shares.detach().numpy() - expected).max() < PARITY
    assert (classes.numpy() == expected.argmax(1)).all()
    if size != taken:
        found = _Brought(size, taken)(torch.from_numpy(pixels))
        assert np.array_equal(found.numpy().transpose(0, 2, 3, 1), brought)


@pytest.fixture
def directory(tmp_path, small) -> Path:
    released = learned(small, Preprocess(image_size=12), (16, 16), "discriminant")
    released.save(tmp_path / "model")
    save_encoder(small, tmp_path / "model" / "encoder.safetensors")
    return tmp_path / "model"


def test_a_damaged_encoder_is_refused(directory) -> None:
    released = Release.load(directory)
    found = released_encoder(released, directory)
    assert encoder_hash(found) == encoding_of(released).encoder_hash
    carried = directory / "encoder.safetensors"
    carried.write_bytes(carried.read_bytes()[:-10])
    with pytest.raises(ValueError, match="must be a safetensors file"):
        released_encoder(released, directory)
