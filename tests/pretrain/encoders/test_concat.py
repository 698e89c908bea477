import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, load_encoder, origin, save_encoder, without_directory
from pretrain.encoders.concat import Concat
from pretrain.encoders.mirrored import Mirrored
from pretrain.preprocess import Preprocess
from pretrain.recipes import ResNetConfig
from pretrain.resnet import SmallResNet

PIXELS = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))
NAME = "concat:timm:resnet10t@32+mirrored:simclr-small"


def small(seed: int) -> SmallResNet:
    config = ResNetConfig((4, 8), (1, 2), stem_stride=2, pool=2)
    return SmallResNet(config, torch.Generator().manual_seed(seed)).eval()


@pytest.fixture
def both() -> Concat:
    return Concat(
        [(small(0), Preprocess()), (Mirrored(small(1)), Preprocess(image_size=16))]
    ).eval()


@torch.inference_mode()
def test_it_is_the_parts_side_by_side_each_of_its_own_size(both: Concat) -> None:
    pictures = (PIXELS * 255).round().to(torch.uint8)
    first, second = small(0), Mirrored(small(1)).eval()
    expected = [first(pictures / 255), second(Preprocess(image_size=16)(pictures))]
    assert torch.equal(both(pictures / 255), torch.cat(expected, 1))
    assert both.embedding_dim == sum(both.widths) == expected[0].shape[1] + expected[1].shape[1]


def test_its_hash_is_that_of_all_parts_and_their_preprocessing(both: Concat) -> None:
    parts = [(small(0), Preprocess()), (Mirrored(small(1)), Preprocess(image_size=16))]
    assert encoder_hash(Concat(parts)) == encoder_hash(both)
    others = [
        parts[::-1],
        [parts[0], (parts[1][0], Preprocess(image_size=15))],
        [(small(2), Preprocess()), parts[1]],
    ]
    assert len({encoder_hash(Concat(each)) for each in [parts, *others]}) == 4


@torch.inference_mode()
def test_one_that_is_saved_is_the_same(tmp_path: Path, both: Concat) -> None:
    save_encoder(both, tmp_path / "encoder.safetensors")
    loaded = load_encoder(tmp_path / "encoder.safetensors")
    assert encoder_hash(loaded) == encoder_hash(both)
    assert torch.equal(loaded(PIXELS), both(PIXELS))


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


def test_a_file_cannot_nest_them(tmp_path: Path, both: Concat) -> None:
    tensors = {k: v.contiguous() for k, v in both.state_dict().items()}
    described = both.architecture()
    nested = {"encoder": described, "preprocess": Preprocess().to_json()}
    within = {"kind": "mirrored", "encoder": described}
    for other in ({"kind": "concat", "parts": [nested, nested]}, within, {"kind": "concat"}):
        metadata = {"architecture": json.dumps(other)}
        save_file(tensors, path := tmp_path / "e.safetensors", metadata)
        with pytest.raises(ValueError, match="architecture must be"):
            load_encoder(path)
