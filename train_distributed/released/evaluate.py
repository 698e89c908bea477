"""A private evaluation: what a model gets wrong on rows that users held out, by one sum."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from embed import EmbeddingSet
from pretrain import check
from pretrain.cli.provenance import versions
from pretrain.datasets import EVALUATION
from train_distributed.ledger.entry import Reserve
from train_distributed.one_shot.class_prior import ClassPrior, Word, word_of
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import MADE_WITH, suitability
from train_distributed.one_shot.request import FaultInjection, Noise, check_noise
from train_distributed.one_shot.source import (
    SEEDED,
    check_partition,
    own_partition,
    refuse_seeded_split,
    spread_users,
)
from train_distributed.one_shot.summation import Plan, RunningSum
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy
from train_distributed.released import FINEST_GRID
from train_distributed.released.evaluation import (
    Evaluation,
    Overlap,
    held_out,
    submissions,
)
from train_distributed.released.evaluation_estimates import (
    Estimates,
    Sampling,
    check_reading,
    estimate,
)

Prior = ClassPrior | Literal["both"]
APART = (
    "no row of these sets is in both: for one replaced record the promises do not add up, if the "
    "model learned from training rows of these sets alone"
)
ADDED = "rows that were trained on may be among them: the promises add up"
OF_GROUPS = "users, and groups of records, may have rows in both: for them the promises add up"


@dataclass(frozen=True)
class Sum:
    """Opened sum over held-out rows, not read yet."""

    releases: list[Release]  # that predicted the rows, each for a prior
    method: Evaluation
    opened: Tensor  # (D,) float64
    sizes: Tensor  # (users,) n_i of those in it
    noise_std: float  # in every entry
    grid: float  # of confidences
    report: dict[str, Any]  # how it was made

    def read(self, confidence: float, sampling: Sampling) -> tuple[list[Estimates], list[Any]]:
        """Estimates, and what the report says under each prior, JSON-ready."""
        estimates = [
            estimate(
                method,
                piece,
                self.sizes,
                self.noise_std,
                confidence=confidence,
                sampling=sampling,
                grid=self.grid,
            )
            for method, piece in self.method.apart(self.opened)
        ]
        models, each = self.releases, len(estimates) // len(self.releases)
        if models[0].findings:
            parts = [estimates[s : s + each] for s in range(0, len(estimates), each)]
            return estimates, [_of_findings(models[0].class_names, part) for part in parts]
        return estimates, [
            each.as_dict(model.class_names, model.report.learned_shares)
            for model, each in zip(models, estimates, strict=True)
        ]


@dataclass(frozen=True)
class Evaluated:
    """A report with intervals, and what it was read from."""

    report: dict[str, Any]
    estimates: Estimates  # under the model's own prior, where there are two
    opened: Tensor  # (D,) float64


def evaluate(
    release: Release,
    embeddings: EmbeddingSet,
    privacy: Privacy,
    *,
    confidence: float = 0.95,
    sampling: Sampling = "rows",
    **settings: Any,
) -> Evaluated:
    """Quality of a model on the rows of split `evaluation`, (ε, δ)-differentially private.

    Args:
        release: the model.
        embeddings: what users hold, raw, embedded as the model's training rows were.
        privacy: (ε, δ), honest fraction, unit and group.
        confidence: of every interval, by itself.
        sampling: what was drawn independently from those of whom the intervals speak: "rows", or
            only "users" with all of their rows.
        **settings: those of `summed`.

    The report of "both" priors has, beside the estimates under the model's own, those under either
    as `by_prior`.

    Raises:
        ValueError: a setting out of range, no evaluation rows, or rows that `held_out` refuses.
            Nothing has been sent then.
    """
    check_reading(confidence, sampling)
    found = summed(release, embeddings, privacy, **settings)
    estimates, under = found.read(confidence, sampling)
    priors: list[ClassPrior | None] = [each.prior for each in found.releases]
    own = priors.index(release.prior) if release.prior in priors else 0
    told = {"sampling": sampling} | check.drop_none(prior=word_of(priors[own])) | under[own]
    if len(priors) > 1:
        told |= {"by_prior": dict(zip(map(str, priors), under, strict=True))}
    return Evaluated(
        found.report | told | {"versions": versions(*MADE_WITH)}, estimates[own], found.opened
    )


def _of_findings(names: Sequence[str], estimates: Sequence[Estimates]) -> dict[str, Any]:
    """JSON-ready estimates of every finding, a problem of two classes, and of their mean.

    The mean's interval takes the findings as fully correlated, which is the widest.
    """
    found = [each.as_dict(("absent", "present")) for each in estimates]
    shares = [each.balanced_accuracy.as_dict() for each in estimates]
    ends = {end: [share[end] for share in shares] for end in shares[0]}
    return {
        "confidence_level": estimates[0].confidence,
        "balanced_accuracy": {
            end: None if None in values else sum(values) / len(values)
            for end, values in ends.items()
        },
        "per_finding": dict(zip(names, found, strict=True)),
        "one_sum": f"{len(names)} findings by one sum, with noise sqrt({len(names)}) times that "
        "of one",
    }


def summed(
    release: Release,
    embeddings: EmbeddingSet,
    privacy: Privacy,
    *,
    prior: Prior | None = None,
    bins: int = 10,
    overlap: Overlap = "refuse",
    training: Iterable[EmbeddingSet] = (),
    partition: Partition | None = None,
    noise: Noise = "discrete",
    generator: torch.Generator | None = None,
    min_survivors: int | None = None,
    allow_delta: bool = False,
    reserve: Reserve | None = None,
    faults: FaultInjection | None = None,
) -> Sum:
    """The noised counts of all users' held-out rows; further settings are those of `release`.

    `prior` is that of the classes for which the model is evaluated, None: its own; "both" evaluates
    it for "equal" and "private" by the one sum, whose noise is √2 times as large. `bins` are of
    confidence, for its calibration; 0: none. `overlap` "add" lets rows in that were
    trained on; the report then says that the promises of both add up. `training` are further sets
    whose training rows may not be among the rows. `reserve` is called once, when all users'
    counts are there, so that nothing can be refused any more, and before any noise is drawn.

    Raises:
        ValueError: as `evaluate`.
    """
    check_noise(noise, generator)
    releases = [release]
    if prior is not None:
        priors = get_args(Word) if prior == "both" else (prior,)
        releases = [release.with_prior(each) for each in priors]
    method = Evaluation.of(release, bins, len(releases))
    if noise == "discrete" and privacy.private:
        refuse_seeded_split(embeddings)
    rows = held_out(embeddings, release, training=training, overlap=overlap)
    partition = own_partition(embeddings, EVALUATION) if partition is None else partition
    check_partition(partition, len(rows))
    sizes = partition.counts
    given = {"discrete": noise == "discrete", "generator": generator}
    plan = Plan.of(method, sizes, privacy, min_survivors, **given)
    if noise == "discrete":
        privacy.refuse_large_delta(len(rows), allowed=allow_delta)
    played = FaultInjection() if faults is None else faults
    kept = played.surviving(len(sizes), plan.main.guarantee.min_survivors)
    summation, mechanism = RunningSum(plan.main, frozenset(played.known_noise)), plan.main.mechanism
    grid = FINEST_GRID if mechanism.grid is None else mechanism.grid
    for users, sent in submissions(method, releases, embeddings, rows, partition, grid, generator):
        present = kept[users]
        if present.any():
            summation.add(users[present], sent[present])
    if reserve is not None:
        reserve(plan.spends())
    opened, survivors = summation.total(), sizes[kept]
    verdict = suitability(
        privacy,
        noise,
        seeded=generator is not None,
        rehearsed=None if faults is None else faults.reason,
        others=(
            *spread_users(embeddings, partition, privacy, EVALUATION),
            *([] if embeddings.held_out_seed is None else [SEEDED]),
        ),
    )
    report = plan.report() | plan.report_sent()
    report |= {"users": len(sizes), "survivors": len(survivors), "rows": int(survivors.sum())}
    report |= privacy.large_delta(len(rows))
    report |= {"with_the_training": overlap_words(privacy, overlap)} | verdict
    noise_std = mechanism.noise_std(len(survivors))
    return Sum(releases, method, opened, survivors, noise_std, grid, report)


def overlap_words(privacy: Privacy, overlap: Overlap = "refuse") -> str:
    """Whether the promises of the evaluation and of the training add up, and for whom."""
    if overlap == "add":
        return ADDED
    return OF_GROUPS if privacy.unit == "user" or privacy.group_size > 1 else APART
