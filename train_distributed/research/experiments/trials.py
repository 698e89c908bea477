"""Experiments as a table: methods on partitions, that `run_trials` plays."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.identity import known_rows
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.research.baselines.learn import train
from train_distributed.research.baselines.task import Task
from train_distributed.research.experiments.checkpoint import Rows, Work
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.simulation.plan import Grid, MethodConfig, Trial
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.shared_training import RowsInMemory

OURS, PUBLISHED = "ours", "published"  # transforms
PAPER_QUANTILE = 0.955
PAPER_CONSTANT = 1 / 32  # the published 1 at c = 34.854, in units of c


def raw_transform(public: EmbeddingSet) -> PublicTransform:
    """Embeddings as they are, divided by the 95.5th percentile of public norms, clipped to 1."""
    norms = [np.linalg.norm(block.astype(np.float64), axis=1) for block in public.blocks()]
    scale = float(np.quantile(np.concatenate(norms), PAPER_QUANTILE))
    clip_norm = math.sqrt(1 + PAPER_CONSTANT**2)
    identity = PublicTransform.identity(public.dim, clip_norm, PAPER_CONSTANT)
    return replace(
        identity,
        scale=torch.tensor(scale, dtype=torch.float32),
        fitted_on=public.content_hash(),
        seen=known_rows(public.blocks()),
        dropped=public.dropped_rows,
    )


def trials(
    settings: Sequence[MethodConfig],
    partitions: Sequence[Scenario],
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
) -> Work:
    """Every setting on every partition at every ε and seed; rows are those of `Result`.

    Settings on the transform "ours" are what `run` makes where nothing but ε is given, by its
    public rule; those on "published" share their trainings at all ε.
    """
    transforms = {OURS: PublicTransform.fit(public), PUBLISHED: raw_transform(public)}
    grid = Grid(
        settings=settings,
        scenarios=partitions,
        promises=conditions.promises,
        seeds=conditions.all_seeds,
        folds=conditions.folds,
        num_classes=len(private.meta["class_names"]),
    )
    grid.validate()

    def jobs(done: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
        found = run_trials(private, transforms, grid, finished=done, rivals=rivals)
        return ((key, [cell.as_dict() for cell in cells]) for key, cells in found)

    return Work(tuple(trial.key for trial in grid.trials()), jobs)


def rivals(
    trial: Trial, plan: Grid, held: RowsInMemory, transform: PublicTransform
) -> Iterator[tuple[PublicTransform, Tensor]]:
    """Transform of the rows and (d, K) weights of a method that is not ours, for every promise."""
    setting, classes = trial.family[0], plan.num_classes
    for promise in plan.promises:
        mapped, options = ReleaseRequest(
            embeddings=FederationSize(sizes=held.sizes, num_classes=classes),
            method=setting.method,
            privacy=promise,
            transform=transform,
            options=setting.options,
        ).settings
        rows = mapped.map_rows(held.x)[:, 1:].numpy()
        words = f"baseline, seed {trial.seed}, epsilon {promise.epsilon}"
        task = Task(
            method=setting.method,
            embeddings=EmbeddingSet(embeddings=rows, labels=held.y.numpy()),
            transform=PublicTransform.identity(mapped.dim - 1, mapped.clip_norm, mapped.constant),
            num_classes=classes,
            partition=held.partition,
            privacy=promise,
            noise="float",
            generator=torch.Generator().manual_seed(zlib.crc32(words.encode())),
        )
        yield mapped, train(task, options).weights
