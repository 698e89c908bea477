"""Vectors of names from a folder's text encoder, words of ids, a network's own classifier."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pretrain.encoders.text import definition_of, name_vectors, words_of
from pretrain.encoders.timm_models import classifier_of

pytestmark = pytest.mark.usefixtures("no_network")
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "cat", "dog", "tench", ",")


TENCH = "tench, Tinca tinca"
DEFINITION = "freshwater dace-like game fish of Europe and western Asia noted for ability to "
DEFINITION += "survive outside water"
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2}
CLIP = {**LAYERS, "hidden_size": 16, "intermediate_size": 16}
TEXT = {**CLIP, "max_position_embeddings": 16, "eos_token_id": 3, "vocab_size": len(WORDS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny untrained BERT with its tokenizer, as transformers writes them."""
    transformers = pytest.importorskip("transformers")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS))
    sizes = {"vocab_size": len(WORDS), "hidden_size": 8, "intermediate_size": 8}
    config = transformers.BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        transformers.BertModel(config).save_pretrained(tmp_path / "model")
    transformers.BertTokenizer(str(vocabulary)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_names_become_vectors_of_length_one_whoever_is_beside_them(folder: Path) -> None:
    found = name_vectors(["cat", "dog", "tench, Tinca tinca"], str(folder))
    assert found.dtype == torch.float64
    assert torch.allclose(torch.linalg.vector_norm(found, dim=1), torch.ones(3).double())
    alone = name_vectors(["cat"], str(folder))
    assert torch.allclose(found[:1], alone, atol=1e-5)  # padding has no weight
    assert not torch.allclose(found[0], found[1], atol=1e-3)
    words, known = found.chunk(2, 1)
    assert torch.allclose(words, known, atol=1e-5)
    of_id, defined = name_vectors(["n01440764"], str(folder)).chunk(2, 1)
    assert torch.allclose(of_id, name_vectors([TENCH], str(folder))[:, :8], atol=1e-5)
    assert not torch.allclose(of_id, defined, atol=1e-3)


def test_the_text_tower_of_a_pair_gives_the_vectors(tmp_path: Path, folder: Path) -> None:
    """A tiny untrained CLIP of transformers: what its own `get_text_features` says."""
    transformers = pytest.importorskip("transformers")
    vision = {**CLIP, "image_size": 14, "patch_size": 7}
    config = transformers.CLIPConfig(text_config=TEXT, vision_config=vision, projection_dim=12)
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        pair = transformers.CLIPModel(config).eval()
    pair.save_pretrained(tmp_path / "pair")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save_pretrained(tmp_path / "pair")
    found = name_vectors(["cat", "dog"], str(tmp_path / "pair"))
    tokens = tokenizer(["a photo of a cat", "a photo of a dog"], return_tensors="pt")
    tokens.pop("token_type_ids", None)
    with torch.inference_mode():
        expected = pair.text_projection(pair.text_model(**tokens).pooler_output).double()
    expected = expected / torch.linalg.vector_norm(expected, dim=1, keepdim=True)
    expected = torch.cat([expected, expected], 1) / math.sqrt(2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_ids_have_words() -> None:
    assert words_of("n01440764") == TENCH
    assert definition_of("n01440764") == f"{TENCH}: {DEFINITION}"
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
        assert (len(ids), ids[0]) == (1000, "n01440764")
    save_file({"_fc.weight": weights[:10]}, "ten.safetensors")
    others = ("ten.safetensors", "nowhere.safetensors")
    for name, origin in (
        ("simclr-small", "shipped"),
        ("hf:weights.safetensors", "file weights.safetensors"),
        *((lite, f"file {other}") for other in others),
        (lite, "random"),
        ("timm:resnet18", "package"),
    ):
        assert classifier_of(name, origin) is None


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
