"""How every report ends: may the model leave the building, what made it, how often it is right."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from embed import EmbeddingSet
from embed.store import TEST
from train_distributed.one_shot.model import Release
from train_distributed.privacy.ledger import NONE
from train_distributed.privacy.promise import Privacy

Noise = Literal["discrete", "float"]


def reported(
    released: Release,
    facts: Mapping[str, Any],
    verdict: Mapping[str, Any],
    embeddings: EmbeddingSet | None = None,
) -> Release:
    """The model with its whole report: facts, verdict, versions, and accuracy where it is known.

    Args:
        released: a model without a report.
        facts: what was promised, how, and at what cost; a key keeps the place it has here.
        verdict: of `suitability`.
        embeddings: the set whose test split, if it has one, gives the accuracy.
    """
    report = {**facts, **verdict, "ledger": NONE, "versions": versions()}
    if embeddings is not None and (embeddings.split == TEST).any():
        report |= accuracy_report(released, embeddings)
    return replace(released, report=report)


def suitability(
    privacy: Privacy,
    noise: Noise,
    *,
    seeded: bool,
    rehearsed: str | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Whether the model may leave the building, and if not, why.

    Args:
        privacy: the promise; without noise there is none.
        noise: floating-point noise is for simulations.
        seeded: somebody can draw the same noise again.
        rehearsed: in what the release was an audit or a rehearsal; None: in nothing.
        others: further reasons.
    """
    reasons = {
        "it has no noise: not private": not privacy.private,
        "floating-point noise": noise == "float" and privacy.private,
        "seeded: whoever knows the seed can subtract the noise": seeded,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    why += [*([] if rehearsed is None else [rehearsed]), *others]
    return {"suitable_for_release": not why} | ({"unsuitable_because": why} if why else {})


def with_reason(report: Mapping[str, Any], reason: str) -> dict[str, Any]:
    """The report of a model that may not be released, for this reason too."""
    why = [*report.get("unsuitable_because", ()), reason]
    return {**report, "suitable_for_release": False, "unsuitable_because": why}


def versions() -> dict[str, str]:
    """Of Python and the libraries that results depend on."""
    return dict(_versions())


@cache
def _versions() -> dict[str, str]:
    names = ("torch", "numpy", "opendp", "blind-averaging")
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def accuracy_report(released: Release, embeddings: EmbeddingSet) -> dict[str, Any]:
    """Accuracy on the test split, over all classes and by class."""
    confusion = released.confusion(embeddings)
    hits, rows = confusion.diagonal(), confusion.sum(1)
    shares = {
        name: int(hit) / int(of)
        for name, hit, of in zip(released.class_names, hits, rows, strict=True)
        if of
    }
    accuracy = int(hits.sum()) / int(rows.sum())
    return {"test_accuracy": accuracy, "test_accuracy_per_class": shares}


def class_names(declared: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """The declared names of the classes, or their numbers as words."""
    return tuple(declared) or tuple(map(str, range(num_classes)))
