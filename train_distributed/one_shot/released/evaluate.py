"""A private evaluation: what a model gets wrong on rows that users held out, by one sum."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet
from embed.store import EVALUATION
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import Rehearsal
from train_distributed.one_shot.released.evaluation import FINEST_GRID, Evaluation
from train_distributed.one_shot.released.evaluation_estimates import (
    Estimates,
    Sampling,
    check_confidence,
    design_effect,
    estimate,
)
from train_distributed.one_shot.released.evaluation_rows import (
    HeldOut,
    Overlap,
    held_out,
    submissions,
)
from train_distributed.one_shot.report import Noise, suitability, versions
from train_distributed.one_shot.summation import (
    Integers,
    one_sum,
    zero_out_report,
)
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import Partition
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.ledger import Reserve, gaussian_fields, simulated_fields
from train_distributed.privacy.promise import Privacy

APART = "no row of these sets is in both: for one replaced record the promises do not add up"
ADDED = "rows that were trained on are among them: the promises add up"
OF_GROUPS = "users, and groups of records, may have rows in both: for them the promises add up"


@dataclass(frozen=True)
class Evaluated:
    """A report with intervals, and what the sum showed to whoever opened it."""

    report: dict[str, Any]
    estimates: Estimates
    opened: Tensor  # (D,) float64


def evaluate(
    release: Release,
    embeddings: EmbeddingSet,
    privacy: Privacy,
    *,
    bins: int = 10,
    confidence: float = 0.95,
    sampling: Sampling = "rows",
    overlap: Overlap = "refuse",
    training: Iterable[EmbeddingSet] = (),
    partition: Partition | None = None,
    noise: Noise = "discrete",
    generator: torch.Generator | None = None,
    min_survivors: int | None = None,
    reserve: Reserve | None = None,
    rehearsal: Rehearsal | None = None,
) -> Evaluated:
    """How good a model is on the rows of split `evaluation`, (ε, δ)-differentially private.

    Args:
        release: the model.
        embeddings: what users hold, raw, embedded as the model's training rows were.
        privacy: (ε, δ), honest fraction, unit and group.
        bins: of confidence, for its calibration; 0: none.
        confidence: of every interval, by itself.
        sampling: what was drawn independently from those of whom the intervals speak: "rows", or
            only "users" with all of their rows.
        overlap: "add" lets rows in that were trained on; the report then says that the promises of
            both add up.
        training: further sets whose training rows may not be among the rows.
        partition: which user holds which evaluation row; None: as the set's own users say.
        noise: "discrete" is what is deployed; "float" is for simulations and marked.
        generator: makes a "float" run reproducible, and unsuitable for release once more.
        min_survivors: m_min, the fewest users that a sum is opened for; None: all.
        reserve: called once, when nothing can be refused any more and before any noise is drawn,
            with what is known of that noise: whoever counts what is spent (`privacy.ledger`), or
            stops it by raising.
        rehearsal: users that drop out or whose noise is known, for audits; the report is marked.

    Raises:
        ValueError: a setting out of range, no evaluation rows, or rows that `held_out` refuses.
            Nothing has been sent then.
    """
    if noise not in ("discrete", "float"):
        raise ValueError(f"noise must be 'discrete' or 'float', got {noise!r}")
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")
    method = Evaluation(num_classes=release.weights.shape[1], bins=bins)
    method.validate()
    check_confidence(confidence)
    found = held_out(embeddings, release, training=training, overlap=overlap)
    partition = own_partition(embeddings, EVALUATION) if partition is None else partition
    sizes = partition.counts
    design_effect(sizes, sampling)
    if len(partition.order) != len(found.rows):
        raise ValueError(
            f"partition must cover the {len(found.rows)} evaluation rows, "
            f"got {len(partition.order)}"
        )
    guarantee = Guarantee.of(sizes, method, privacy, min_survivors)
    played = Rehearsal() if rehearsal is None else rehearsal
    kept = played.surviving(len(sizes), guarantee.min_survivors)
    summation = one_sum(
        method,
        guarantee,
        sizes,
        discrete=noise == "discrete",
        generator=generator,
        bare=frozenset(played.known_noise),
    )
    if reserve is not None:
        exact = isinstance(summation, Integers)
        reserve(gaussian_fields(summation.plan) if exact else simulated_fields(guarantee))
    grid = FINEST_GRID if summation.grid is None else summation.grid
    for users, sent in submissions(method, release, embeddings, found.rows, partition, grid):
        present = kept[users]
        if present.any():
            summation.add(users[present], sent[present])
    opened, survivors = summation.total(), sizes[kept]
    estimates = estimate(
        method,
        opened,
        survivors,
        summation.local_std * math.sqrt(len(survivors)),
        confidence=confidence,
        sampling=sampling,
        grid=grid,
    )
    verdict = suitability(
        privacy,
        noise,
        seeded=generator is not None,
        rehearsed=None if rehearsal is None else rehearsal.reason,
    )
    report = guarantee.report() | zero_out_report(guarantee, summation) | summation.report()
    report |= {"users": len(sizes), "survivors": len(survivors), "rounds": 1}
    report |= described(estimates, release.class_names, survivors, sampling)
    report |= overlap_report(found, privacy) | verdict | {"versions": versions()}
    return Evaluated(report, estimates, opened)


def described(
    estimates: Estimates, class_names: tuple[str, ...], sizes: Tensor, sampling: Sampling
) -> dict[str, Any]:
    """What was found, JSON-ready: also of a sum that a federation took."""
    return {"rows": int(sizes.sum()), "sampling": sampling} | estimates.as_dict(class_names)


def overlap_report(found: HeldOut, privacy: Privacy) -> dict[str, Any]:
    """Whether the evaluation's promise and that of the training add up, and for whom."""
    several = privacy.unit == "user" or privacy.group_size > 1
    words = (OF_GROUPS if several else APART) if found.disjoint else ADDED
    return {"training_rows_among_them": found.shared, "with_the_training": words}
