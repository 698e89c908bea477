"""timm's models by name: sizes, preprocessing as timm itself prepares pictures, weights."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform
from torchvision.transforms.functional import to_pil_image

from pretrain import build_encoder
from pretrain.encoders.timm_models import _preprocess
from pretrain.preprocess import Preprocess

pytestmark = pytest.mark.usefixtures("no_network")
DINOV2 = "timm:vit_small_patch14_dinov2.lvd142m"
VIT = "timm:vit_tiny_patch16_224"


@pytest.mark.parametrize(
    "overlay",
    [
        {"crop_pct": 0.875},
        {"crop_pct": 0.95, "interpolation": "bilinear"},
        {"crop_pct": 1.0, "crop_mode": "squash"},
        {"crop_pct": 0.9, "crop_mode": "squash"},
        {"crop_pct": 1.0, "crop_mode": "border"},
        {"crop_pct": 1.15},
        {"crop_pct": 0.875, "input_size": (3, 96, 64)},
    ],
)
@pytest.mark.parametrize("shape", [(300, 420), (420, 300), (256, 256), (64, 65)])
def test_pictures_are_prepared_as_timm_does(overlay: dict[str, Any], shape: Any) -> None:
    model = timm.create_model("test_resnet", pretrained_cfg_overlay={**overlay})
    config = resolve_data_config({}, model=model)
    config |= {"mean": (0.4,) * 3 if overlay.get("crop_mode") == "border" else (0.0,) * 3}
    plain = create_transform(**config | {"std": (1.0,) * 3})
    seeds = torch.randint(0, 256, (1, 3, 6, 7), generator=torch.Generator().manual_seed(0)).byte()
    picture = (Preprocess(image_size=shape, fit="squash")(seeds) * 255).round().byte()
    expected: Any = plain(to_pil_image(picture[0])) + config["mean"][0]  # pyright: ignore
    found = _preprocess(config)(picture)[0]
    assert found.shape == expected.shape
    assert (found - expected).abs().max() < 3 / 255  # PIL rounds after every step


def test_a_tagged_name_states_its_own() -> None:
    expected = Preprocess(image_size=224, fit="shortest", resize=256)
    assert build_encoder("timm:tf_efficientnet_lite0", weights="random").preprocess == expected
    tagged = build_encoder("timm:resnet18.a1_in1k", weights="random")
    assert tagged.preprocess.resize == 235  # 224 / 0.95
    assert str(tagged.preprocess) == "224 x 224 px, shortest side to 235 x 235"


@torch.inference_mode()
def test_widths_are_those_of_the_output_at_the_size_that_is_asked() -> None:
    encoder = build_encoder(DINOV2, weights="random", image_size=56)
    assert encoder.preprocess == Preprocess(image_size=56)
    assert encoder(torch.rand(1, 3, 56, 56)).shape == (1, 384) == (1, encoder.embedding_dim)
    widened = build_encoder("timm:mobilenetv3_small_050", weights="random")  # after pooling
    assert widened(torch.rand(1, 3, 64, 64)).shape == (1, 1024) == (1, widened.embedding_dim)


def test_a_transformers_file_is_resampled(tmp_path: Path) -> None:
    """Its position embedding goes from 4 x 4 to 2 x 2 patches, as timm does it."""
    small: Any = timm.create_model("vit_tiny_patch16_224", num_classes=5, img_size=64)
    torch.save(small.state_dict(), path := tmp_path / "w.pth")
    same: Any = build_encoder(VIT, weights=str(path), image_size=64)
    named = {f"student.backbone.{name}": t for name, t in small.state_dict().items()}
    named |= dict.fromkeys(("student.head.mlp", "student.backbone.mask_token"), torch.rand(1))
    torch.save(named, path)
    other: Any = build_encoder(VIT, weights=str(path), image_size=32)
    grid = same.model.pos_embed[:, 1:].unflatten(1, (4, 4))
    assert torch.equal(same.model.pos_embed, small.pos_embed)
    assert torch.equal(other.model.cls_token, small.cls_token)
    assert other.model.pos_embed.shape == (1, 5, 192)
    assert (other.model.pos_embed[:, 1:].mean(1) - grid.mean((1, 2))).abs().max() < 0.02


def test_a_head_is_more_than_its_classifier(tmp_path: Path) -> None:
    """ConvNeXt's norm stands in its head and belongs to the embedding."""
    whole: Any = timm.create_model("test_convnext", num_classes=7)
    torch.save(whole.state_dict(), tmp_path / "w.pth")
    encoder: Any = build_encoder("timm:test_convnext", weights=str(tmp_path / "w.pth"))
    assert torch.equal(encoder.model.head.norm.weight, whole.head.norm.weight)


def test_without_network() -> None:
    with pytest.raises(ValueError, match=r"weights of timm:resnet18 must be .* got no network"):
        build_encoder("timm:resnet18", weights="hub")
