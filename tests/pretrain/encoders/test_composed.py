"""Encoders made of others: of a picture and its mirror image, of several side by side."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, load_encoder, origin, save_encoder, without_directory
from pretrain.encoders.base import Concat, Mirrored
from pretrain.preprocess import Preprocess
from tests.pretrain.encoders.conftest import PIXELS, assert_saved_and_read, small

NAME = "concat:timm:resnet10t@32+mirrored:simclr-small"


@pytest.fixture
def both() -> Concat:
    return Concat(
        [(small(0), Preprocess()), (Mirrored(small(1)), Preprocess(image_size=16))]
    ).eval()


def test_one_that_is_saved_is_the_same(tmp_path: Path, both: Concat) -> None:
    assert_saved_and_read(both, tmp_path / "joined.safetensors")
    read = assert_saved_and_read(Mirrored(small()).eval(), tmp_path / "mirrored.safetensors")
    assert isinstance(read, Mirrored)


@torch.inference_mode()
def test_a_joined_one_is_the_parts_side_by_side_each_of_its_own_size(both: Concat) -> None:
    pictures = (PIXELS * 255).round().to(torch.uint8)
    first, second = small(0), Mirrored(small(1)).eval()
    expected = [first(pictures / 255), second(Preprocess(image_size=16)(pictures))]
    assert torch.equal(both(pictures / 255), torch.cat(expected, 1))
    assert both.embedding_dim == sum(both.widths) == expected[0].shape[1] + expected[1].shape[1]


def test_the_hash_of_a_joined_one_is_that_of_its_parts(both: Concat) -> None:
    parts = [(small(0), Preprocess()), (Mirrored(small(1)), Preprocess(image_size=16))]
    assert encoder_hash(Concat(parts)) == encoder_hash(both)
    others = [
        parts[::-1],
        [parts[0], (parts[1][0], Preprocess(image_size=15))],
        [(small(2), Preprocess()), parts[1]],
    ]
    assert len({encoder_hash(Concat(each)) for each in [parts, *others]}) == 4


@torch.inference_mode()
def test_any_encoders_are_joined_by_name(tmp_path: Path) -> None:
    found = build_encoder(NAME, weights="random", seed=3)
    one = build_encoder("timm:resnet10t", weights="random", seed=3)
    other = build_encoder("mirrored:simclr-small")
    expected = [one(Preprocess(image_size=32).scaled(PIXELS)), other(PIXELS)]
    assert torch.equal(found(PIXELS), torch.cat(expected, 1))
    assert found.preprocess == Preprocess()
    save_encoder(small(0), path := tmp_path / "a.safetensors")
    name = f"concat:{path}@16+timm:resnet10t"
    assert origin(name, "random") == "file a.safetensors+random"
    assert origin(name, "+package") == "file a.safetensors+package"
    assert without_directory(name) == "concat:a.safetensors@16+timm:resnet10t"
    assert encoder_hash(build_encoder(name, weights="+random")) == encoder_hash(
        build_encoder(name, weights="random")
    )


@pytest.mark.parametrize(
    ("name", "weights", "rule"),
    [
        ("concat:simclr-small", None, "must join two encoders or more, got 1"),
        ("concat:concat:simclr-small+simclr-small", None, "two encoders or more"),
        ("mirrored:concat:simclr-small+simclr-small", None, r"concat:mirrored:A\+B"),
        (NAME, None, "weights must be given for timm:resnet10t"),
        (NAME, "random+random", "weights must be left out for simclr-small"),
        (NAME, "random++", r"weights must be one, or 2 joined by \+, got random\+\+"),
    ],
)
def test_what_cannot_be_joined_is_named(name: str, weights: str | None, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        build_encoder(name, weights=weights)


def test_sizes_are_those_of_the_parts() -> None:
    with pytest.raises(ValueError, match="image_size must be left out for concat:"):
        build_encoder(NAME, weights="random", image_size=32)


def test_a_file_cannot_nest_joined_ones(tmp_path: Path, both: Concat) -> None:
    tensors = {k: v.contiguous() for k, v in both.state_dict().items()}
    described = both.architecture()
    nested = {"encoder": described, "preprocess": Preprocess().to_json()}
    within = {"kind": "mirrored", "encoder": described}
    for other in ({"kind": "concat", "parts": [nested, nested]}, within, {"kind": "concat"}):
        metadata = {"architecture": json.dumps(other)}
        save_file(tensors, path := tmp_path / "e.safetensors", metadata)
        with pytest.raises(ValueError, match="architecture must be"):
            load_encoder(path)


@torch.inference_mode()
def test_a_mirrored_one_is_the_mean_of_a_picture_and_its_mirror_image() -> None:
    found = Mirrored(small()).eval()(PIXELS)
    expected = torch.stack([(small()(p[None]) + small()(p.flip(2)[None]))[0] / 2 for p in PIXELS])
    assert torch.allclose(found, expected, atol=1e-6)


@torch.inference_mode()
def test_left_and_right_make_no_difference() -> None:
    mirrored = Mirrored(small()).eval()
    assert torch.allclose(mirrored(PIXELS), mirrored(PIXELS.flip(3)), atol=1e-6)
    assert not torch.allclose(mirrored(PIXELS), mirrored(PIXELS.flip(2)), atol=1e-6)  # upside down


def test_a_mirrored_one_is_another_encoder_of_the_same_weights() -> None:
    mirrored = Mirrored(small())
    assert encoder_hash(mirrored) != encoder_hash(small())
    assert mirrored.embedding_dim == small().embedding_dim
    assert mirrored.preprocess == small().preprocess


@torch.inference_mode()
def test_any_encoder_can_be_mirrored_by_name(tmp_path: Path) -> None:
    save_encoder(small(), path := tmp_path / "encoder.safetensors")
    assert torch.equal(build_encoder(f"mirrored:{path}")(PIXELS), Mirrored(small())(PIXELS))
    named = build_encoder("mirrored:timm:resnet10t", weights="random", seed=3)
    inner = build_encoder("timm:resnet10t", weights="random", seed=3)
    assert named.preprocess == inner.preprocess
    assert encoder_hash(named) == encoder_hash(Mirrored(inner))
    assert origin("mirrored:simclr-small", None) == "shipped"
    assert origin(f"mirrored:{path}", None) == "file encoder.safetensors"
    assert origin("mirrored:timm:resnet10t", "random") == "random"
    assert without_directory(f"mirrored:{path}") == "mirrored:encoder.safetensors"
    assert without_directory("mirrored:timm:resnet10t") == "mirrored:timm:resnet10t"


def test_what_cannot_be_mirrored_is_named(tmp_path: Path) -> None:
    for name, rule in {
        "mirrored:mirrored:simclr-small": "mirrored once",
        "mirrored:timm:resnet10t": "weights must be given for timm:resnet10t",
        "mirrored:": "encoder must be one of",
        f"mirrored:{tmp_path}/none": "encoder must be one of",
    }.items():
        with pytest.raises(ValueError, match=rule):
            build_encoder(name)


def test_a_file_cannot_nest_mirrored_ones(tmp_path: Path) -> None:
    tensors = {k: v.contiguous() for k, v in Mirrored(small()).state_dict().items()}
    for depth in (2, 400, 100_000):
        described = (
            '{"kind": "mirrored", "encoder": ' * depth
            + json.dumps(small().architecture())
            + "}" * depth
        )
        save_file(tensors, path := tmp_path / "e.safetensors", {"architecture": described})
        with pytest.raises(ValueError, match="architecture must be"):
            load_encoder(path)
