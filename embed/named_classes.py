"""Classes of one set found in another by their names."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from embed.class_sources import ClassMeans
from embed.store import EmbeddingSet
from embed.transform import PublicTransform
from pretrain.cli.json_text import parsed


def examples_of(public: EmbeddingSet, names: Sequence[str]) -> EmbeddingSet | None:
    """The public set itself where its class names contain these; None: they do not.

    Numbers are no names: they count where both have the same ones.
    """
    theirs = [plain(str(name)) for name in public.meta.get("class_names", ())]
    ours = [plain(name) for name in names]
    numbers = all(name.isdecimal() for name in ours)
    same = bool(ours) and (set(ours) == set(theirs) if numbers else set(ours) <= set(theirs))
    return public if same and public.labelled else None


def means_by_name(
    shown: EmbeddingSet, transform: PublicTransform, names: Sequence[str]
) -> ClassMeans:
    """Means of the classes of these names among labelled examples.

    Raises:
        ValueError: no class of the examples has one of the names.
    """
    theirs = {plain(str(name)): k for k, name in enumerate(shown.meta.get("class_names", ()))}
    place = [theirs.get(plain(name)) for name in names]
    if all(label is None for label in place):
        raise ValueError(f"examples must have classes named as the private ones, got {[*theirs]}")
    found = ClassMeans.of(shown, transform, len(theirs))
    means = torch.zeros(len(names), transform.dim - 1, dtype=torch.float64)
    counts = torch.zeros(len(names), dtype=torch.float64)
    for k, label in enumerate(place):
        if label is not None and found.counts[label]:
            means[k], counts[k] = found.means[label], found.counts[label]
    return ClassMeans(means, counts)


def read_alike(path: Path, names: Sequence[str], public: Sequence[str]) -> list[list[int]]:
    """Public labels that look like each private class, of a JSON file {class: [public classes]}.

    A public class may be named by its own name or by its words.

    Raises:
        ValueError: no such file, or a class that is unknown.
    """
    from pretrain.encoders.text import words_of

    try:
        given: Any = parsed(path.read_text("utf-8"))
        if not isinstance(given, dict) or not all(isinstance(v, list) for v in given.values()):
            raise ValueError("a JSON object of class and list of public classes is wanted")
        for name in given:
            if name not in names:
                raise ValueError(f"one of the classes {', '.join(names)} is wanted, got {name}")
        place = {plain(words): k for k, name in enumerate(public) for words in (words_of(name),)}
        place |= {first.partition(",")[0]: k for first, k in list(place.items())}
        place |= {plain(name): k for k, name in enumerate(public)}
        labels = [[place.get(plain(str(each))) for each in given.get(name, ())] for name in names]
        for name, found in zip(names, labels, strict=True):
            if None in found:
                odd = given[name][found.index(None)]
                raise ValueError(f"a public class is wanted for {name}, got {odd!r}")
        return [[label for label in found if label is not None] for found in labels]
    except (OSError, ValueError) as error:
        raise ValueError(f"alike must be a file of classes, got {path}: {error}") from error


def plain(name: str) -> str:
    """Name as it is compared: without case, spaces for underscores."""
    return name.replace("_", " ").casefold().strip()
