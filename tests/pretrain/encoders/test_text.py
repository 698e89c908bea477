"""Vectors of names from a folder's text encoder, words of ids, a network's own classifier."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pretrain.encoders.classifier import classifier_of
from pretrain.encoders.text import name_vectors, words_of

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "photo", "of", "cat", "dog", "tench", ",")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny untrained BERT with its tokenizer, as transformers writes them."""
    transformers = pytest.importorskip("transformers")
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS))
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )
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
    assert torch.equal(name_vectors(["n01440764"], str(folder)), name_vectors([TENCH], str(folder)))


TENCH = "tench, Tinca tinca"


def test_ids_have_words() -> None:
    assert words_of("n01440764") == TENCH
    assert words_of("n99999999") == "n99999999"
    assert words_of("polar_bear") == "polar bear"


def test_what_is_no_text_encoder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="text_encoder must be package or a model's directory"):
        name_vectors(["cat"], str(tmp_path))
    monkeypatch.setattr("pretrain.encoders.text.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"text_encoder=package must have .* installed"):
        name_vectors(["cat"], "package")


def test_the_packaged_encoder_knows_that_cats_are_nearer_to_dogs() -> None:
    pytest.importorskip("all_minilm_l6_v2")
    cat, dog, ship = name_vectors(["cat", "dog", "ship"], "package")
    assert cat @ dog > cat @ ship + 0.1


def test_the_classifier_is_read_from_the_encoder_s_own_file(tmp_path: Path) -> None:
    weights = torch.randn(1000, 5, generator=torch.Generator().manual_seed(0))
    file = tmp_path / "weights.safetensors"
    save_file({"_fc.weight": weights, "_fc.bias": torch.zeros(1000)}, file)
    ids, found = classifier_of("timm:tf_efficientnet_lite0", str(file))
    assert torch.equal(found, weights.double())
    assert (len(ids), ids[0]) == (1000, "n01440764")
    with pytest.raises(ValueError, match="classifier must be that of timm:NAME"):
        classifier_of("simclr-small", str(file))
    save_file({"_fc.weight": weights[:10]}, file)
    with pytest.raises(ValueError, match="classifier must be one layer of 1000"):
        classifier_of("timm:tf_efficientnet_lite0", str(file))
