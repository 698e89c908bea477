"""Experiments as a table: lines, each a method on a partition, that `run_trials` plays."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.identity import known_rows
from embed.transform_options import TransformOptions
from train_distributed.one_shot.defaults import PublicFacts
from train_distributed.privacy.promise import Privacy
from train_distributed.research.baselines.learn import train
from train_distributed.research.baselines.task import Task
from train_distributed.research.experiments.checkpoint import Rows, Work
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.simulation.plan import Grid, MethodConfig, Trial
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.scenario import Scenario, held_out
from train_distributed.simulation.shared_training import RowsInMemory

PAPER_QUANTILE = 0.955
PAPER_CONSTANT = 1 / 32  # the published 1 at c = 34.854, in units of c


@dataclass(frozen=True, kw_only=True)
class Line:
    """Line of an experiment; of lines with one label the best is shown."""

    label: str
    method: str
    partition: Scenario
    options: Mapping[str, Any] = field(default_factory=dict)  # what is left out is as in `run`
    published: bool = False  # on raw embeddings with these options alone, as in the paper


def as_run(
    line: Line, sizes: Tensor, num_classes: int, privacy: Privacy, width: int
) -> tuple[TransformOptions, dict[str, Any]]:
    """Transform and options that `run` takes where nothing but ε is given, by its public rule.

    Args:
        line: method, and the options that it is given.
        sizes: (users,) local sizes.
        num_classes: K.
        privacy: the promise.
        width: p of the embeddings.
    """
    facts = PublicFacts(sizes=sizes, num_classes=num_classes, privacy=privacy)
    transform, options = facts.filled_in(line.method, TransformOptions(), line.options, width)
    return transform, facts.options(line.method, options)


def raw_transform(public: EmbeddingSet) -> PublicTransform:
    """Embeddings as they are, divided by the 95.5th percentile of public norms, clipped to 1."""
    norms = [np.linalg.norm(block.astype(np.float64), axis=1) for block in public.blocks()]
    scale = float(np.quantile(np.concatenate(norms), PAPER_QUANTILE))
    clip_norm = math.sqrt(1 + PAPER_CONSTANT**2)
    identity = PublicTransform.identity(public.dim, clip_norm, PAPER_CONSTANT)
    return replace(
        identity,
        scale=torch.full((public.dim,), scale),
        fitted_on=public.content_hash(),
        seen=known_rows(public.blocks()),
        dropped=public.dropped_rows,
    )


def trials(
    lines: Sequence[Line], conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet
) -> Work:
    """Every line at every ε and seed; rows are those of `Result`.

    Published lines share their trainings at all ε. A line of ours has settings of its own at each.
    """
    classes = len(private.meta["class_names"])
    shared = {"seeds": conditions.all_seeds, "folds": conditions.folds, "num_classes": classes}
    fit = cache(lambda options: options.fit(public))
    sizes = cache(lambda partition: _sizes(partition, conditions, private))
    grids: dict[str, Grid] = {}
    transforms: dict[str, PublicTransform] = {}

    def add(key: str, setting: MethodConfig, promises: Sequence[Privacy], where: Scenario) -> None:
        known = grids.get(key)
        settings = [] if known is None else known.settings
        scenarios = [] if known is None else known.scenarios
        grids[key] = Grid(
            settings=[*settings, *([] if setting in settings else [setting])],
            scenarios=[*scenarios, *([] if where in scenarios else [where])],
            promises=promises,
            **shared,
        )

    for line in lines:
        if line.published:
            transforms["published"] = transforms.get("published") or raw_transform(public)
            setting = MethodConfig(line.label, line.method, "published", line.options)
            add("published", setting, conditions.promises, line.partition)
            continue
        for promise in conditions.promises:
            given = sizes(line.partition), classes, promise, public.dim
            transform, options = as_run(line, *given)
            key = f"{line.label}, epsilon {promise.epsilon}, {transform}, {options}"
            transforms[key] = fit(transform)
            setting = MethodConfig(line.label, line.method, "default", options)
            add(key, setting, [promise], line.partition)
    return Work.joined(_work(private, transforms[key], key, grid) for key, grid in grids.items())


def _sizes(partition: Scenario, conditions: Conditions, private: EmbeddingSet) -> Tensor:
    """(users,) local sizes of a partition of the training rows."""
    train, _ = held_out(private.labels, private.split, conditions.folds, 0)
    users = None if private.users is None else torch.tensor(private.users[train])
    labels, draw = torch.tensor(private.labels[train]), torch.Generator().manual_seed(0)
    return partition.sizes(partition.place(labels, users, draw)[1].counts)


def _work(private: EmbeddingSet, transform: PublicTransform, name: str, grid: Grid) -> Work:
    """Trials of a grid on one transform."""
    grid.validate()

    def jobs(done: Mapping[str, Rows]) -> Iterator[tuple[str, Rows]]:
        finished = {trial.key for trial in grid.trials() if f"{name}: {trial.key}" in done}
        transforms = {setting.transform: transform for setting in grid.settings}
        found = run_trials(private, transforms, grid, finished=finished, rivals=rivals)
        for key, cells in found:
            yield f"{name}: {key}", [cell.as_dict() for cell in cells]

    return Work(tuple(f"{name}: {trial.key}" for trial in grid.trials()), jobs)


def rivals(
    trial: Trial, plan: Grid, held: RowsInMemory, transform: PublicTransform
) -> Iterator[Tensor]:
    """(d, K) weights of a method that is not ours, trained afresh for every promise."""
    setting = trial.family[0]
    rows = EmbeddingSet(embeddings=held.x[:, 1:].numpy(), labels=held.y.numpy())
    clipped = PublicTransform.identity(transform.dim - 1, transform.clip_norm, transform.constant)
    for promise in plan.promises:
        words = f"baseline, seed {trial.seed}, epsilon {promise.epsilon}"
        task = Task(
            method=setting.method,
            embeddings=rows,
            transform=clipped,
            num_classes=plan.num_classes,
            partition=held.partition,
            privacy=promise,
            noise="float",
            generator=torch.Generator().manual_seed(zlib.crc32(words.encode())),
        )
        yield train(task, setting.options).weights
