"""Many releases of the same users: methods x promises x partitions x seeds, as simulations."""

import math
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice, product
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed.baselines import BASELINES, Task, train
from train_distributed.guarantee import Guarantee
from train_distributed.methods import STATISTICS, Method, build_method
from train_distributed.privacy import Privacy
from train_distributed.simulation import TRAINED, RowsInMemory, released, totals
from train_distributed.world import World, held_out

K = TypeVar("K")
V = TypeVar("V")
SCORED = 64  # weights that are tested together


@dataclass(frozen=True)
class Setting:
    """A method with everything that is chosen before private data is seen."""

    label: str
    method: str
    transform: str = "default"  # which of the transforms that are at hand
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training(self) -> str:
        """Settings of equal value need one training between them, whatever their other options."""
        statistics = self.method in STATISTICS
        exact = self.options.get("solver", "exact") == "exact"
        seen = {} if statistics else dict(self.options)
        if exact:
            seen = {name: value for name, value in seen.items() if name not in TRAINED}
        return f"{self.method}({_in_words(seen)}) on {self.transform}"


@dataclass(frozen=True)
class Cell:
    """One released model's accuracy on the test rows."""

    label: str
    method: str
    scheme: str
    epsilon: float | None  # None: without noise
    seed: int
    accuracy: float
    options: Mapping[str, Any]
    transform: str
    users: int = 0  # that held rows, whatever the world stands for
    rows: int = 0  # that they held
    delta: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run. A job is what one training serves: a world, a seed, some settings, every ε."""

    settings: Sequence[Setting]
    worlds: Sequence[World]
    promises: Sequence[Privacy]
    seeds: Sequence[int]
    num_classes: int
    folds: int | None = None  # None: the predefined split; else see `world.held_out`

    def validate(self) -> None:
        """Checks what can be checked before any work.

        Raises:
            ValueError: naming the field, its rule and its value.
        """
        if not (self.seeds and self.worlds and self.promises and self.settings):
            raise ValueError("settings, worlds, promises and seeds must not be empty")
        for promise in self.promises:
            promise.validate()

    def jobs(self) -> list["Job"]:
        """All jobs, those on one transform and of one partition together."""
        families: dict[str, dict[str, list[Setting]]] = {}
        for setting in self.settings:
            of_transform = families.setdefault(setting.transform, {})
            of_transform.setdefault(setting.training, []).append(setting)
        return [
            Job(tuple(family), world, seed)
            for of_transform in families.values()
            for world, seed in product(self.worlds, self.seeds)
            for family in of_transform.values()
        ]


@dataclass(frozen=True)
class Job:
    """Settings that one training serves, in one world, with one seed."""

    family: tuple[Setting, ...]
    world: World
    seed: int

    @property
    def key(self) -> str:
        """Names a job of a plan; equal keys give equal cells."""
        return f"{self.family[0].training}, {self.world.key}, seed {self.seed}"

    def noise(self, promise: Privacy, dimension: int) -> Tensor:
        """(dimension,) draws from N(0, 1), alike in all jobs of a seed, other for another promise.

        Settings and partitions are compared under the same noise (common random numbers), so
        their difference is not that of two draws.
        """
        words = f"noise, seed {self.seed}, epsilon {promise.epsilon}, delta {promise.delta}"
        generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
        return torch.randn(dimension, generator=generator, dtype=torch.float64)


def run_jobs(
    embeddings: EmbeddingSet,
    transforms: Mapping[str, PublicTransform],
    plan: Plan,
    *,
    finished: Collection[str] = (),
) -> Iterator[tuple[str, list[Cell]]]:
    """The cells of every job that is not finished, with the job's key.

    A seed fixes the partition, the test rows and the noise; a job's cells do not depend on which
    others were run. Labels of test rows are read to report accuracies: choosing a setting by them
    costs privacy that no ε here accounts for.
    """
    stage = _Stage(embeddings, transforms, plan)
    for job in plan.jobs():
        if job.key not in finished:
            yield job.key, stage.play(job)


class _Stage:
    """What consecutive jobs share: transformed rows, a partition, sums that know no partition."""

    def __init__(
        self, embeddings: EmbeddingSet, transforms: Mapping[str, PublicTransform], plan: Plan
    ) -> None:
        self.embeddings, self.transforms, self.plan = embeddings, transforms, plan
        self.labels = torch.tensor(embeddings.labels)
        self.rows = _Latest(self._rows)
        self.held = _Latest(self._held)
        self.sums: dict[object, list[Tensor]] = {}
        self.known: dict[object, list[float]] = {}

    def play(self, job: Job) -> list[Cell]:
        name = job.family[0].transform
        held, test = self.held((name, job.world, job.seed))
        if job.family[0].method in BASELINES:
            accuracies = accuracy(self.rows(name)[test], self.labels[test], self._rivals(job, held))
            return self._cells(job, held, accuracies)
        methods = [self._method(setting) for setting in job.family]
        sums = self._totals(job, held, methods)
        sizes = job.world.sizes(held.sizes).sort().values
        key = (job.family[0].training, sizes.numpy().tobytes(), job.seed)
        accuracies = self.known.get(key, [])
        if not accuracies:
            weights = _releases(job, self.plan.promises, held.sizes, methods, sums)
            accuracies = accuracy(self.rows(name)[test], self.labels[test], weights)
        if job.family[0].method in STATISTICS:  # equal sums, sizes and noise: equal releases
            self.known[key] = accuracies
        return self._cells(job, held, accuracies)

    def _rivals(self, job: Job, held: RowsInMemory) -> Iterator[Tensor]:
        """(d, K) weights of a baseline, trained afresh for every promise."""
        setting = job.family[0]
        rows = EmbeddingSet(embeddings=held.x[:, 1:].numpy(), labels=held.y.numpy())
        transform = self.transforms[setting.transform]
        clipped = PublicTransform.identity(
            transform.dim - 1, transform.clip_norm, transform.constant
        )
        for promise in self.plan.promises:
            words = f"baseline, seed {job.seed}, epsilon {promise.epsilon}"
            task = Task(
                method=setting.method,
                embeddings=rows,
                transform=clipped,
                num_classes=self.plan.num_classes,
                partition=held.partition,
                privacy=promise,
                noise="float",
                generator=torch.Generator().manual_seed(zlib.crc32(words.encode())),
                min_survivors=None,
                dropped=(),
                known_noise=(),
            )
            yield train(task, setting.options).weights

    def _cells(self, job: Job, held: RowsInMemory, accuracies: Sequence[float]) -> list[Cell]:
        users, rows = len(held.sizes), int(held.sizes.sum())
        pairs = product(job.family, self.plan.promises)
        return [
            self._cell(job, setting, promise, users, rows, value)
            for (setting, promise), value in zip(pairs, accuracies, strict=True)
        ]

    def _method(self, setting: Setting) -> Method:
        transform = self.transforms[setting.transform]
        return build_method(setting.method, transform, self.plan.num_classes, setting.options)

    def _rows(self, name: str) -> Tensor:
        return self.transforms[name](self.embeddings.embeddings)

    def _held(self, place: tuple[str, World, int]) -> tuple[RowsInMemory, Tensor]:
        name, world, seed = place
        train, test = held_out(self.embeddings.labels, self.embeddings.split, self.plan.folds, seed)
        labels = self.labels[train]
        users = self.embeddings.users
        writers = None if users is None else torch.tensor(users[train])
        rows, partition = world.place(labels, writers, torch.Generator().manual_seed(seed))
        x = self.rows(name)[torch.from_numpy(train)[rows]]
        return RowsInMemory(x, labels[rows], partition), torch.from_numpy(test)

    def _totals(self, job: Job, held: RowsInMemory, methods: list[Method]) -> list[Tensor]:
        """Sums, from an earlier job where the partition makes no difference to them."""
        statistics = job.family[0].method in STATISTICS
        if not statistics and job.world.users != 1:
            return totals(held, methods)
        part = job.world.rows_per_user and (job.world.users, job.world.rows_per_user)
        drawn = bool(part) or self.plan.folds is not None
        key = (job.family[0].training, part, job.seed if drawn else None)
        if key not in self.sums:
            self.sums[key] = totals(held, methods[:1] if statistics else methods)
        return self.sums[key] * len(methods) if statistics else self.sums[key]

    def _cell(
        self, job: Job, setting: Setting, promise: Privacy, users: int, rows: int, value: float
    ) -> Cell:
        return Cell(
            setting.label,
            setting.method,
            job.world.name,
            None if math.isinf(promise.epsilon) else promise.epsilon,
            job.seed,
            value,
            dict(setting.options),
            setting.transform,
            users,
            rows,
            promise.delta,
        )


class _Latest(Generic[K, V]):
    """The last value of a function, so that consecutive equal questions are answered once."""

    def __init__(self, make: Callable[[K], V]) -> None:
        self.make = make
        self.last: tuple[K, V] | None = None

    def __call__(self, key: K) -> V:
        if self.last is None or self.last[0] != key:
            self.last = None  # the old value goes before the new one is made
            self.last = (key, self.make(key))
        return self.last[1]


def _releases(
    job: Job,
    promises: Sequence[Privacy],
    held: Tensor,
    methods: Sequence[Method],
    sums: Sequence[Tensor],
) -> Iterator[Tensor]:
    """(d, K) weights for every method and promise; sums are scaled to what they stand for."""
    sizes = job.world.sizes(held)
    rows = int(sizes.sum())
    noises = [job.noise(promise, methods[0].dimension) for promise in promises]
    scale = rows / int(held.sum())
    for method, total in zip(methods, sums, strict=True):
        for promise, noise in zip(promises, noises, strict=True):
            guarantee = Guarantee.of(sizes, method, promise)
            yield released(method, scale * total, guarantee, rows, noise)


def accuracy(x: Tensor, y: Tensor, weights: Iterator[Tensor]) -> list[float]:
    """Share of rows (n, d) that each (d, K) classifies as their labels (n,)."""
    values: list[float] = []
    while block := list(islice(weights, SCORED)):
        scores = x @ torch.cat(block, 1).to(x.dtype)
        hits = scores.unflatten(1, (len(block), -1)).argmax(2) == y[:, None]
        values += hits.double().mean(0).tolist()
    return values


def _in_words(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items()))
