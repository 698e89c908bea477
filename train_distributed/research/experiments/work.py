"""Work made of stages: plans on the whole private set or on its public principal coordinates."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.compress import Compression
from embed.transform_options import TransformOptions
from train_distributed.research.baselines import trusted_descent
from train_distributed.research.baselines.learn import train
from train_distributed.research.baselines.task import Task
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.lineups import RAW, raw_transform
from train_distributed.simulation.plan import Grid, MethodConfig, Trial
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.shared_training import RowsInMemory

Name = TypeVar("Name")
Done = Mapping[str, Rows]
Jobs = Iterator[tuple[str, Rows]]


@dataclass(frozen=True)
class Work:
    """Jobs, given those already done, and what becomes of their rows."""

    total: int  # at most
    jobs: Callable[[Done], Jobs]
    collect: Callable[[Done], Rows]

    @classmethod
    def of(cls, jobs: Mapping[str, Callable[[], Rows]]) -> "Work":
        """Jobs by their keys, each independent of the others; rows in the order of completion."""
        return cls(
            len(jobs),
            lambda done: ((key, make()) for key, make in jobs.items() if key not in done),
            lambda done: [row for rows in done.values() for row in rows],
        )

    @classmethod
    def joined(cls, works: Iterable["Work"]) -> "Work":
        """Works one after another."""
        parts = list(works)
        return cls(
            sum(part.total for part in parts),
            lambda done: (job for part in parts for job in part.jobs(done)),
            lambda done: [row for part in parts for row in part.collect(done)],
        )


@dataclass(frozen=True)
class Stage:
    """A plan with the embeddings and transforms it runs on."""

    plan: Grid
    embeddings: EmbeddingSet
    transforms: Mapping[str, PublicTransform]
    name: str = ""

    def __post_init__(self) -> None:
        self.plan.validate()

    @property
    def work(self) -> Work:
        """Trials of the plan; their rows in order."""
        prefix, trials = f"{self.name}: " if self.name else "", self.plan.trials()

        def jobs(done: Done) -> Jobs:
            own = self.embeddings, self.transforms, self.plan
            finished = {key.removeprefix(prefix) for key in done if key.startswith(prefix)}
            for key, cells in run_trials(*own, finished=finished, rivals=baselines):
                yield prefix + key, [cell.as_dict() for cell in cells]

        return Work(
            len(trials),
            jobs,
            lambda done: [row for job in trials for row in done[prefix + job.key]],
        )


@dataclass(frozen=True)
class Sets:
    """The private set, whole and compressed, with the transforms that settings name."""

    whole: EmbeddingSet
    public: EmbeddingSet

    def stages(
        self, settings: Sequence[MethodConfig], grid: Mapping[str, TransformOptions], **plan: Any
    ) -> list[Stage]:
        """Settings on raw embeddings on the whole set, the others on its coordinates."""
        plan |= {"num_classes": len(self.whole.meta["class_names"])}
        raw = tuple(s for s in settings if s.transform == RAW)
        ours = tuple(s for s in settings if s.transform != RAW)
        stages = []
        if raw:
            transforms = {RAW: raw_transform(self.public)}
            stages.append(Stage(Grid(settings=raw, **plan), self.whole, transforms))
        if ours:
            stages.append(Stage(Grid(settings=ours, **plan), *self.compressed(grid)))
        return stages

    def compressed(
        self, grid: Mapping[Name, TransformOptions]
    ) -> tuple[EmbeddingSet, dict[Name, PublicTransform]]:
        """Coordinates of the private rows, and transforms of those."""
        widest = max(options.principal(self.public.dim) for options in grid.values())
        compression = Compression.fit(self.public, widest)
        public = compression.apply(self.public)
        transforms = {
            name: compression.fit_transform(public, **options.arguments())
            for name, options in grid.items()
        }
        return compression.apply(self.whole), transforms


def baselines(
    job: Trial, plan: Grid, held: RowsInMemory, transform: PublicTransform
) -> Iterator[Tensor]:
    """(d, K) weights of a baseline, trained afresh for every promise; of descents all at once."""
    setting = job.family[0]
    if setting.method == trusted_descent.NAME:
        yield from _descents(job, plan, held, transform)
        return
    rows = EmbeddingSet(embeddings=held.x[:, 1:].numpy(), labels=held.y.numpy())
    clipped = PublicTransform.identity(transform.dim - 1, transform.clip_norm, transform.constant)
    for promise in plan.promises:
        words = f"baseline, seed {job.seed}, epsilon {promise.epsilon}"
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


def _descents(
    job: Trial, plan: Grid, held: RowsInMemory, transform: PublicTransform
) -> Iterator[Tensor]:
    settings = [trusted_descent.Setting(**each.options) for each in job.family]
    found = []
    for promise in plan.promises:
        words = f"descent, seed {job.seed}, epsilon {promise.epsilon}"
        draw = torch.Generator().manual_seed(zlib.crc32(words.encode()))
        own = held, transform, plan.num_classes, settings, promise, draw
        found.append(trusted_descent.train(*own))
    yield from (weights for each in zip(*found, strict=True) for weights in each)
