"""Models of transformers: outputs, preprocessing, weights, refusals; nothing is downloaded."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, origin, without_directory
from pretrain.preprocess import Preprocess
from tests.pretrain.conftest import assert_saved_and_read

pytestmark = pytest.mark.usefixtures("no_network")
PICTURES = torch.randint(0, 256, (2, 3, 60, 84), generator=torch.Generator().manual_seed(0))
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 28, "width": 28}}
CLIP = {
    "image_processor_type": "CLIPImageProcessor",
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
}
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**LAYERS, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 50}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2}
POOLED = "pooled output"
VISION = {**LAYERS, "hidden_size": 16, "patch_size": 7, "image_size": 28}
LEVIT = CLIP | {"image_processor_type": "LevitImageProcessor"}


def test_an_embedding_is_the_models_own_output_of_its_own_pixels(dinov2: Path) -> None:
    from transformers import AutoImageProcessor, AutoModel

    encoder = build_encoder(f"hf:{dinov2}")
    assert encoder.preprocess == Preprocess(image_size=28, fit="shortest", resize=32)
    assert build_encoder(f"hf:{dinov2}", image_size=42).preprocess == Preprocess(image_size=42)
    theirs: Any = AutoModel.from_pretrained(dinov2)
    pixels = AutoImageProcessor.from_pretrained(dinov2)(PICTURES, return_tensors="pt")
    with torch.inference_mode():
        expected = theirs(**pixels).last_hidden_state[:, 0]  # DINOv2's: the class token
        found = encoder(encoder.preprocess(PICTURES.byte()))
    assert found.shape == (2, encoder.embedding_dim) == (2, 16)
    assert (found - expected).abs().max() < 0.02 * expected.abs().max()
    assert not encoder.training
    flat = torch.full((1, 3, 50, 70), 128, dtype=torch.uint8)
    grey = encoder.preprocess(flat)  # nothing shifts or scales values
    assert np.allclose(grey.numpy(), 128 / 255, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "pooling"),
    [
        ("Dinov2", {}, POOLED),
        ("ViT", {"intermediate_size": 24}, POOLED),
        ("ViT", {"intermediate_size": 24, "task": "ForImageClassification"}, "class token"),
        ("SiglipVision", {"intermediate_size": 24, "processor": SIGLIP}, POOLED),
        ("ResNet", {"hidden_sizes": [8, 16], "depths": [1, 1]}, POOLED),
        ("MobileViT", {"hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8] * 7}, None),
        ("CLIP", {"vision_config": VISION, "text_config": TEXT, "processor": CLIP}, POOLED),
    ],
)
def test_architectures_are_saved_and_read(tmp_path, written, kind, options, pooling) -> None:
    """A checkpoint of a classifier lacks the pooling: no random weights, but the class token."""
    encoder = build_encoder(f"hf:{written(kind, **options)}")
    if pooling is not None:
        assert encoder.architecture()["pooling"] == pooling
    assert_saved_and_read(encoder, tmp_path / "e.safetensors", torch.rand(2, 3, 28, 28))


def test_weights(dinov2: Path) -> None:
    own, file = build_encoder(f"hf:{dinov2}"), dinov2 / "model.safetensors"
    assert encoder_hash(build_encoder(f"hf:{dinov2}", weights=str(file))) == encoder_hash(own)
    untrained = [build_encoder(f"hf:{dinov2}", weights="random", seed=s) for s in (1, 1, 2)]
    hashes = [encoder_hash(encoder) for encoder in untrained]
    assert hashes[0] == hashes[1] != hashes[2]
    assert encoder_hash(own) not in hashes
    assert origin(f"hf:{dinov2}", None) == "file Dinov2"
    assert origin("hf:facebook/dinov2-small", None) == "hub"
    assert without_directory(f"hf:{dinov2}") == "hf:Dinov2"
    assert without_directory("hf:facebook/dinov2-small") == "hf:facebook/dinov2-small"
    config = json.loads((dinov2 / "config.json").read_text())
    (dinov2 / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    assert encoder_hash(build_encoder(f"hf:{dinov2}")) != encoder_hash(own)  # another activation


def test_weights_that_are_missing_foreign_or_nan(dinov2: Path) -> None:
    file, some = dinov2 / "model.safetensors", "encoder.layer.1.norm1.weight"
    whole = load_file(file)
    more = whole | {some.replace("1", "2", 1): whole[some].clone()}
    for tensors, rule in (
        ({k: whole[k] for k in whole if k != some}, "must hold all weights, got none for encoder"),
        (more, "must fit Dinov2Model, got unknown encoder"),
        (whole | {some: whole[some] * torch.nan}, "must be finite, got NaN"),
    ):
        save_file(tensors, file, {"format": "pt"})
        with pytest.raises(ValueError, match=rule):
            build_encoder(f"hf:{dinov2}")


@pytest.mark.parametrize(
    ("kind", "options", "rule"),
    [
        ("ViTMAE", {"intermediate_size": 24}, "always the same, got random ones"),
        ("Bert", {"intermediate_size": 8, "vocab_size": 50}, "must be a vision model, got Bert"),
        ("ViT", {"processor": LEVIT}, "must be scaling, cutting and normalising, got a Levit"),
        ("ViT", {"processor": SIGLIP | {"resample": 1}}, "normalising, got resample 1"),
    ],
)
def test_models_that_are_refused(written, kind, options, rule) -> None:
    with pytest.raises(ValueError, match=rule):
        build_encoder(f"hf:{written(kind, **options)}")


def test_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dinov2: Path) -> None:
    with pytest.raises(ValueError, match="on the hub or in its cache, got no network"):
        build_encoder("hf:facebook/dinov2-small")
    with pytest.raises(ValueError, match="must be readable, got"):
        build_encoder(f"hf:{tmp_path}")
    with pytest.raises(ValueError, match=r"must be readable.*none\.pth"):
        build_encoder(f"hf:{dinov2}", weights=str(tmp_path / "none.pth"))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match=r"pip install 'blind-averaging\[encoders\]'"):
        build_encoder("hf:facebook/dinov2-small")
