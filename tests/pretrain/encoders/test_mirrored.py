import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, load_encoder, origin, save_encoder, without_directory
from pretrain.encoders.mirrored import Mirrored
from pretrain.recipes import ResNetConfig
from pretrain.resnet import SmallResNet

PIXELS = torch.rand(3, 3, 12, 12, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def plain() -> SmallResNet:
    config = ResNetConfig((4, 8), (1, 2), stem_stride=2, pool=2)
    return SmallResNet(config, torch.Generator().manual_seed(0)).eval()


@torch.inference_mode()
def test_it_is_the_mean_of_a_picture_and_its_mirror_image(plain: SmallResNet) -> None:
    found = Mirrored(plain).eval()(PIXELS)
    expected = torch.stack([(plain(p[None]) + plain(p.flip(2)[None]))[0] / 2 for p in PIXELS])
    assert torch.allclose(found, expected, atol=1e-6)


@torch.inference_mode()
def test_left_and_right_make_no_difference(plain: SmallResNet) -> None:
    mirrored = Mirrored(plain).eval()
    assert torch.allclose(mirrored(PIXELS), mirrored(PIXELS.flip(3)), atol=1e-6)
    assert not torch.allclose(mirrored(PIXELS), mirrored(PIXELS.flip(2)), atol=1e-6)  # upside down


def test_it_is_another_encoder_of_the_same_weights(plain: SmallResNet) -> None:
    mirrored = Mirrored(plain)
    assert encoder_hash(mirrored) != encoder_hash(plain)
    assert mirrored.embedding_dim == plain.embedding_dim
    assert mirrored.preprocess == plain.preprocess


@torch.inference_mode()
def test_one_that_is_saved_is_the_same(tmp_path: Path, plain: SmallResNet) -> None:
    mirrored = Mirrored(plain).eval()
    save_encoder(mirrored, tmp_path / "encoder.safetensors")
    loaded = load_encoder(tmp_path / "encoder.safetensors")
    assert isinstance(loaded, Mirrored)
    assert encoder_hash(loaded) == encoder_hash(mirrored)
    assert torch.equal(loaded(PIXELS), mirrored(PIXELS))


@torch.inference_mode()
def test_any_encoder_can_be_mirrored_by_name(tmp_path: Path, plain: SmallResNet) -> None:
    save_encoder(plain, path := tmp_path / "encoder.safetensors")
    assert torch.equal(build_encoder(f"mirrored:{path}")(PIXELS), Mirrored(plain)(PIXELS))
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


def test_a_file_cannot_nest_them(tmp_path: Path, plain: SmallResNet) -> None:
    tensors = {k: v.contiguous() for k, v in Mirrored(plain).state_dict().items()}
    for depth in (2, 400, 100_000):
        described = (
            '{"kind": "mirrored", "encoder": ' * depth
            + json.dumps(plain.architecture())
            + "}" * depth
        )
        save_file(tensors, path := tmp_path / "e.safetensors", {"architecture": described})
        with pytest.raises(ValueError, match="architecture must be"):
            load_encoder(path)
