"""One model from all users' rows by any method: ours, or one that we compare with."""

import time
from typing import Any

import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed.ledger.fields import Reserve
from train_distributed.one_shot.methods import METHODS, build_method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.probabilities import reading
from train_distributed.one_shot.release import Rehearsal
from train_distributed.one_shot.report import Noise
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy
from train_distributed.research import baselines
from train_distributed.research.baselines import multi_round

ALL_METHODS = (*METHODS, *baselines.BASELINES, *multi_round.METHODS)
# users x length of a submission: about a minute of exact sampling (tests/benchmarks/bench_scale.py:
# 4.1 ms for the 9,546 numbers of one user)
DISCRETE_NUMBERS = 1 << 27


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
    reserve: Reserve | None = None,
    **options: Any,
) -> Release:
    """`train_distributed.release` for all of ALL_METHODS; its arguments, report and errors.

    `noise` left out is "discrete" where a method has it, up to DISCRETE_NUMBERS of them.

    The report of a simulation says under "simulation_only" how many seconds it took.

    Raises:
        ValueError: as `release`; also whatever a baseline cannot do: all but those that are one
            secure sum per round are simulated with float noise only.
    """
    started = time.perf_counter()
    if method not in ALL_METHODS:
        raise ValueError(f"method must be one of {', '.join(ALL_METHODS)}, got {method!r}")
    many = method in multi_round.METHODS
    task = baselines.Task(
        method=method,
        embeddings=embeddings,
        transform=transform or PublicTransform.identity(embeddings.dim),
        declared=num_classes,
        partition=partition or own_partition(embeddings),
        privacy=privacy,
        noise=noise or (multi_round.only_noise(method, generator) if many else "discrete"),
        generator=generator,
        min_survivors=min_survivors,
        vouch_for_transform=vouch_for_transform,
        rehearsal=rehearsal,
        reserve=reserve,
    )
    options = task.circumstances.options(method, options)
    if method in METHODS:
        built = build_method(method, task.transform, task.num_classes, options)
        users = task.partition.users
        if noise is None and users * built.dimension > DISCRETE_NUMBERS:
            raise ValueError(
                f"noise must be chosen for more than {DISCRETE_NUMBERS} numbers: 'discrete', for "
                f"release, takes about half a microsecond each, 'float' is a simulation; "
                f"got {users} users x {built.dimension}"
            )
        released = task.release(built)
    else:
        released = baselines.train(task, options)
    released = released.with_report(method=method, probabilities=reading(method))
    if released.report.suitable_for_release:
        return released
    seconds = {"seconds": time.perf_counter() - started}  # how long it took depends on the rows
    simulated = released.report.get("simulation_only", {}) | seconds
    return released.with_report(simulation_only=simulated)
