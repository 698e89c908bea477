"""How every report ends: may the model leave the building, what made it, how often it is right."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np
import torch

from embed import EmbeddingSet
from embed.clip import ROWS
from pretrain import check
from pretrain.cli.provenance import versions
from pretrain.datasets import TEST
from train_distributed.ledger.ledger import NONE
from train_distributed.one_shot.model import INSIDE, Release, reading
from train_distributed.one_shot.report_file import Report
from train_distributed.privacy.promise import Privacy

MADE_WITH = ("torch", "numpy", "blind-averaging")  # packages that a model depends on
Noise = Literal["discrete", "float"]
CLEAR = "rows of split 1 (test), read in the clear: no epsilon covers what these numbers show"


def check_noise(noise: Noise, generator: torch.Generator | None) -> None:
    """Raises ValueError for another kind of noise, or a generator for noise that is released."""
    check.one_of(get_args(Noise), noise=noise)
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")


def reported(
    released: Release,
    facts: Mapping[str, Any],
    verdict: Mapping[str, Any],
    embeddings: EmbeddingSet | None = None,
) -> Release:
    """The model with its whole report: facts, verdict, versions, and accuracy where it is known.

    Facts keep the places that they have here; the verdict is of `suitability`. The set that was
    learned from gives the accuracy, if it has a test split, and says what the model says of its
    encoder.
    """
    report: dict[str, Any] = {**facts, **verdict, "ledger": NONE, "versions": versions(*MADE_WITH)}
    made = released.transform.encoding if embeddings is None else embeddings.encoding
    made = made or released.transform.encoding
    report |= {"encoding": made and made.to_json()}
    report |= {"probabilities": reading(facts.get("method"))}
    if released.class_shares is None:
        report |= {"other_priors": f"none: {INSIDE}"}
    if released.temperature != 1:
        report |= {"temperature": released.temperature}
    if embeddings is not None and (embeddings.split == TEST).any():
        metrics = measure(replace(released, report=Report.of(report)), embeddings)
        shares = {name: of["recall"] for name, of in metrics["per_class"].items() if of["rows"]}
        report |= {"test_accuracy": metrics["accuracy"]}
        report |= {"majority_baseline": metrics["majority_baseline"]}
        report |= {"test_accuracy_per_class": shares, "test_metrics": metrics | {"of": CLEAR}}
    return replace(released, report=Report.of(report), encoding=made)


def suitability(
    privacy: Privacy,
    noise: Noise,
    *,
    seeded: bool,
    rehearsed: str | None = None,
    others: Sequence[str] = (),
) -> dict[str, Any]:
    """Whether the model may leave the building, and if not, why.

    Reasons against it are a promise without noise, floating-point noise, a seed, a rehearsal or an
    audit as `rehearsed` says, and the others that are given.
    """
    reasons = {
        "it has no noise: not private": not privacy.private,
        "floating-point noise": noise == "float" and privacy.private,
        "seeded: whoever knows the seed can subtract the noise": seeded,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    why += [*([] if rehearsed is None else [rehearsed]), *others]
    return {"suitable_for_release": not why} | ({"unsuitable_because": why} if why else {})


def measure(released: Release, embeddings: EmbeddingSet, split: int = TEST) -> dict[str, Any]:
    """All metrics on the rows of a split; see `metrics`. Raises ValueError for an empty split."""
    from train_distributed.one_shot.metrics import ClassifierMetrics

    rows = np.flatnonzero(embeddings.split == split)
    if not len(rows):
        raise ValueError(f"split must hold rows, got none in split {split}")
    evaluation = ClassifierMetrics.of(released, len(rows))
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        evaluation.add(released.scores(embeddings.embeddings[part]), embeddings.labels[part])
    return evaluation.report()


def class_names(declared: Sequence[str], num_classes: int) -> tuple[str, ...]:
    """The declared names of the classes, or their numbers as words."""
    return tuple(declared) or tuple(map(str, range(num_classes)))
