"""One model from all users' rows by any method: ours, or one that we compare with."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed.one_shot.intake import admit, check_partition, known_classes, spread_users
from train_distributed.one_shot.methods import METHODS
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.release import Rehearsal, release
from train_distributed.one_shot.released.probabilities import reading
from train_distributed.one_shot.report import Noise, with_reason
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy
from train_distributed.research import baselines
from train_distributed.research.baselines import multi_round

ALL_METHODS = (*METHODS, *baselines.BASELINES, *multi_round.METHODS)


def learn(
    embeddings: EmbeddingSet,
    method: str,
    privacy: Privacy,
    *,
    transform: PublicTransform | None = None,
    num_classes: int | None = None,
    partition: Partition | None = None,
    noise: Noise | None = None,
    generator: torch.Generator | None = None,
    min_survivors: int | None = None,
    vouch_for_transform: bool = False,
    rehearsal: Rehearsal | None = None,
    **options: Any,
) -> Release:
    """`train_distributed.release` for all of ALL_METHODS; its arguments, report and errors.

    The report of a simulation says under "simulation_only" how many seconds it took.

    Raises:
        ValueError: as `release`; also whatever a baseline cannot do: all but those that are one
            secure sum per round are simulated with float noise only.
    """
    started = time.perf_counter()
    if method in METHODS:
        released = release(
            embeddings,
            method,
            privacy,
            transform=transform,
            num_classes=num_classes,
            partition=partition,
            noise=noise or "discrete",
            generator=generator,
            min_survivors=min_survivors,
            vouch_for_transform=vouch_for_transform,
            rehearsal=rehearsal,
            **options,
        )
    elif method in baselines.BASELINES:
        task = baselines.Task(
            method=method,
            embeddings=embeddings,
            transform=transform or PublicTransform.identity(embeddings.dim),
            num_classes=known_classes(embeddings, num_classes),
            partition=partition or own_partition(embeddings),
            privacy=privacy,
            noise=noise or "discrete",
            generator=generator,
            min_survivors=min_survivors,
            vouch_for_transform=vouch_for_transform,
            rehearsal=rehearsal,
        )
        released = _train(task, num_classes, options)
    elif method in multi_round.METHODS:
        played = rehearsal or Rehearsal()
        if min_survivors is not None or played.dropped or played.known_noise:
            raise ValueError(
                f"min_survivors, dropped and known_noise must be left out for method {method!r}, "
                "where all users stay"
            )
        released = multi_round.learn(
            embeddings,
            method,
            privacy,
            transform=transform,
            num_classes=num_classes,
            partition=partition,
            noise=noise,
            generator=generator,
            vouch_for_transform=vouch_for_transform,
            **options,
        )
    else:
        raise ValueError(f"method must be one of {', '.join(ALL_METHODS)}, got {method!r}")
    report: dict[str, Any] = released.report | {"method": method, "probabilities": reading(method)}
    if not report["suitable_for_release"]:  # how long it took depends on the rows
        seconds = {"seconds": time.perf_counter() - started}
        report["simulation_only"] = report.get("simulation_only", {}) | seconds
    return replace(released, report=report)


def _train(task: baselines.Task, num_classes: int | None, options: Mapping[str, Any]) -> Release:
    """A baseline's release of rows that are admitted; `num_classes` as it was declared."""
    check_partition(task.partition, int((task.embeddings.split == TRAIN).sum()))
    admitted = admit(
        task.embeddings,
        task.transform,
        num_classes,
        discrete=task.noise == "discrete" and task.privacy.private,
        vouched=task.vouch_for_transform,
    )
    released = baselines.train(task, options)
    report = released.report | admitted.report
    spread = spread_users(task.embeddings, task.partition, task.privacy)
    for reason in (*admitted.unsuitable, *spread):
        if reason not in report.get("unsuitable_because", ()):
            report = with_reason(report, reason)
    return replace(released, report=report)
