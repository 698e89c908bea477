"""Models of transformers, for pictures and for names; classifiers; nothing is downloaded."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pretrain import build_encoder
from pretrain.encoder import encoder_hash, origin, without_directory
from pretrain.encoders.text import definition_of, name_vectors, words_of
from pretrain.encoders.timm_models import classifier_of
from pretrain.preprocess import Preprocess
from tests.pretrain.conftest import Written, assert_saved_and_read

pytestmark = pytest.mark.usefixtures("no_network")
PICTURES = torch.randint(0, 256, (2, 3, 60, 84), generator=torch.Generator().manual_seed(0))
SIGLIP = {"image_processor_type": "SiglipImageProcessor", "size": {"height": 28, "width": 28}}
CLIP = {"image_processor_type": "CLIPImageProcessor", "size": {"shortest_edge": 28}}
CLIP |= {"crop_size": {"height": 28, "width": 28}}
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2}
TEXT = {**LAYERS, "hidden_size": 8, "intermediate_size": 8, "vocab_size": 50}
TEXT |= {"bos_token_id": 1, "eos_token_id": 2}
POOLED = "pooled output"
VISION = {**LAYERS, "hidden_size": 16, "patch_size": 7, "image_size": 28}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "cat", "dog", "tench", ",")
TENCH, TENCH_ID = "tench, Tinca tinca", "n01440764"
DEFINITION = "freshwater dace-like game fish of Europe and western Asia noted for ability to "
DEFINITION += "survive outside water"
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


@pytest.fixture
def folder(tmp_path: Path, written: Written) -> Path:
    """A tiny untrained BERT with its tokenizer, as transformers writes them."""
    import transformers

    (tmp_path / "vocab.txt").write_text("\n".join(WORDS))
    bert = written("Bert", hidden_size=8, intermediate_size=8, vocab_size=len(WORDS))
    transformers.BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(bert)
    return bert


def test_names_become_vectors_of_length_one_whoever_is_beside_them(folder: Path) -> None:
    found = name_vectors(["cat", "dog", TENCH], str(folder))
    assert found.dtype == torch.float64
    assert torch.allclose(torch.linalg.vector_norm(found, dim=1), torch.ones(3).double())
    assert torch.allclose(found[:1], name_vectors(["cat"], str(folder)), atol=1e-5)  # no padding
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    words, known = found.chunk(2, 1)
    assert torch.allclose(words, known, atol=1e-5)
    of_id, defined = name_vectors([TENCH_ID], str(folder)).chunk(2, 1)
    assert torch.allclose(of_id, name_vectors([TENCH], str(folder))[:, :8], atol=1e-5)
    assert not torch.allclose(of_id, defined, atol=1e-3)


def test_the_text_tower_of_a_pair_gives_the_vectors(folder: Path, written: Written) -> None:
    """A tiny untrained CLIP: what its own projection of its text tower says."""
    import transformers

    text = {**TEXT, "hidden_size": 16, "vocab_size": len(WORDS), "eos_token_id": 3}
    path = written("CLIP", vision_config=VISION, text_config=text, projection_dim=12)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(path)
    pair: Any = transformers.CLIPModel.from_pretrained(path)
    tokens = tokenizer(["a photo of a cat", "a photo of a dog"], return_tensors="pt")
    tokens.pop("token_type_ids", None)
    with torch.inference_mode():
        expected = pair.text_projection(pair.text_model(**tokens).pooler_output).double()
    expected = expected / torch.linalg.vector_norm(expected, dim=1, keepdim=True)
    expected = torch.cat([expected, expected], 1) / math.sqrt(2)
    found = name_vectors(["cat", "dog"], str(path))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_ids_have_words() -> None:
    assert words_of(TENCH_ID) == TENCH
    assert definition_of(TENCH_ID) == f"{TENCH}: {DEFINITION}"
    assert definition_of("cat") is definition_of("n99999999") is None
    assert words_of("n99999999") == "n99999999"
    assert words_of("polar_bear") == "polar bear"


def test_what_is_no_text_encoder_is_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="text_encoder must be package or a model's directory"):
        name_vectors(["cat"], str(tmp_path))
    monkeypatch.setattr("pretrain.encoders.text.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"text_encoder=package must have .* installed"):
        name_vectors(["cat"], "package")


def test_the_packaged_encoder_knows_that_cats_are_nearer_to_dogs() -> None:
    pytest.importorskip("all_minilm_l6_v2")
    cat, dog, ship = name_vectors(["cat", "dog", "ship"], "package")
    assert cat @ dog > cat @ ship + 0.1


def test_the_classifier_is_read_from_the_encoder_s_own_file(tmp_path, monkeypatch) -> None:
    weights = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    monkeypatch.chdir(tmp_path)
    file, lite = Path("weights.safetensors"), "timm:tf_efficientnet_lite0"
    save_file({"_fc.weight": weights, "_fc.bias": torch.zeros(1000)}, file)
    for name in (lite, f"mirrored:{lite}"):
        held = classifier_of(name, "file weights.safetensors")
        assert held is not None
        ids, found = held
        assert torch.equal(found, weights.double())
        assert (len(ids), ids[0]) == (1000, TENCH_ID)
    save_file({"_fc.weight": weights[:10]}, "ten.safetensors")
    others = ("ten.safetensors", "nowhere.safetensors")
    for name, source in (
        ("simclr-small", "shipped"),
        ("hf:weights.safetensors", "file weights.safetensors"),
        *((lite, f"file {other}") for other in others),
        (lite, "random"),
        ("timm:resnet18", "package"),
    ):
        assert classifier_of(name, source) is None


def test_the_classifier_of_the_hub_is_not_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken from the hub's cache, which is empty here."""
    from huggingface_hub import constants

    asked = []

    def create(name: str, pretrained: bool) -> None:
        asked.append((name, pretrained, constants.HF_HUB_OFFLINE))
        raise OSError("not in the cache")

    monkeypatch.setattr("timm.create_model", create)
    assert classifier_of("timm:resnet18", "hub") is None
    assert asked == [("resnet18", True, True)]
