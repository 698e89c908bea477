"""A run played through on public rows: which accuracy it will have, beside what is public."""

import io
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.guesses import Sources, added_to, examples_of
from embed.options import NONE, Knowledge
from pretrain import check
from train_distributed.one_shot.finding_metrics import right_findings
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.registry import DEFAULT, for_findings
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.one_shot.statistic import Statistic
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.plan import Scenario
from train_distributed.simulation.runner import accuracies, largest_share
from train_distributed.simulation.shared_training import RowsInMemory, released
from train_distributed.simulation.tasks import (
    ClassTotals,
    RawCoordinates,
    Task,
    held_out_tasks,
    tasks_like,
    tasks_of_findings,
    tasks_of_known,
)

TASKS, SEEDS = 12, 2
GAIN, DOUBLINGS = 0.05, (2, 4, 8, 16)  # of balanced accuracy; how often users or ε are doubled
FEW = 4  # tasks on which that is tried
CLIPPED = 3  # tasks that users' clips are found on
STEPS = 1e4  # standard deviation of a user's noise in steps: any, for its seconds
NOTHING = 1e12  # standard deviation of the noise in a sum that says nothing
Kind = Literal["private", "no privacy", "public alone", "largest class"]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Public facts about a run: sizes and classes."""

    users: int  # w
    rows_per_user: int  # n
    num_classes: int  # K

    def validate(self) -> None:
        """Raises ValueError for a number out of range."""
        check.at_least(1, users=self.users, rows_per_user=self.rows_per_user)
        check.at_least(2, num_classes=self.num_classes)

    @property
    def rows(self) -> int:
        """Rows of all users."""
        return self.users * self.rows_per_user

    @property
    def federation(self) -> FederationSize:
        """Public numbers of the run that is asked for."""
        sizes = torch.full((self.users,), self.rows_per_user)
        return FederationSize(sizes=sizes, num_classes=self.num_classes)

    def stand_in(self, rows: int) -> Scenario:
        """Scenario of as many users as `rows` public rows can play, whose sums stand for all."""
        each = min(self.rows_per_user, rows)
        return Scenario(
            users=min(self.users, rows // each),
            rows_per_user=each,
            stands_for=(self.users, self.rows_per_user),
        )


@dataclass(frozen=True)
class Played:
    """Accuracy of one model on the test rows of a task."""

    task: int
    seed: int
    kind: Kind
    epsilon: float | None  # of private models
    users: int
    accuracy: float
    balanced: float  # mean accuracy of the classes


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Tasks that are like the asked one, and a run's settings on each of them.

    Public rows are projected once to the raw coordinates of a transform of all of them; it has not
    seen their labels by then. The scatter within and between classes, which directions come from,
    is that of the rows which a task leaves public.
    """

    sizes: Sizes
    privacy: Privacy  # but for ε
    tasks: Sequence[Task]
    rows: Tensor  # (N, D + 1) raw rows that tasks are made of
    labels: np.ndarray  # (N,)
    public: EmbeddingSet  # raw coordinates of the public set
    raw: RawCoordinates
    totals: ClassTotals  # of the public set
    known_classes: bool  # whether tasks are of the classes that are asked for
    knowledge: Knowledge = field(default_factory=Knowledge)
    names: tuple[str, ...] = ()  # of the source's labels
    sources: Sources | None = None  # of names, in the coordinates
    examples: int = 0  # of each class, that are held back from a task
    options: Mapping[str, Any] = field(default_factory=dict)  # of the method, as given

    @classmethod
    def of(
        cls,
        public: EmbeddingSet,
        sizes: Sizes,
        privacy: Privacy,
        *,
        like: EmbeddingSet | None = None,
        knowledge: Knowledge | None = None,
        tasks: int = TASKS,
    ) -> "Rehearsal":
        """Tasks of a public set, or of one `like` the private rows.

        Raises:
            ValueError: no labels, a row that is not finite, too few classes, or a number out of
                range.
        """
        sizes.validate()
        knowledge = knowledge or Knowledge()
        for name, each in {"public": public, "like": like}.items():
            if each is not None:
                each.need_labels(name)
                each.check_finite(name)
        count, known = sizes.num_classes, _known_classes(public, like, sizes, knowledge)
        source = public if like is None or known is not None else like
        if source.findings is not None:
            left = None if source is public else len(public)
            posed = tasks_of_findings(source.findings, count, tasks, left)
        elif known is not None:
            posed = tasks_of_known(public.labels, known, tasks)
        elif like is None:
            posed = held_out_tasks(public.labels, count, tasks)
        else:
            posed = tasks_like(like.labels, count, tasks, len(public))
        raw = RawCoordinates.fit(public)
        rows = raw.of(public)
        meta = {name: public.meta[name] for name in ("class_names",) if name in public.meta}
        labels = np.maximum(public.labels, 0)  # of findings, all rows are of one class
        coordinates = EmbeddingSet(embeddings=rows[:, 1:].numpy(), labels=labels, meta=meta)
        totals = ClassTotals.of(rows[:, 1:], labels, int(labels.max()) + 1)
        held = np.unique(source.labels) if source.findings is None else source.findings[0]
        same = known is not None or len(held) == count
        sources = None
        if knowledge.text_encoder is not None:
            sources = Sources.of(knowledge, public).compressed(raw.basis)
        shown = 0
        if knowledge.examples not in (None, NONE) and known is None:
            examples = EmbeddingSet.open(knowledge.examples)
            examples.need_labels("examples")
            shown = int(np.median(np.unique(examples.labels, return_counts=True)[1]))
        return cls(
            sizes=sizes,
            privacy=privacy,
            tasks=posed,
            rows=rows if source is public else raw.of(source),
            labels=np.array(source.targets),
            public=coordinates,
            raw=raw,
            totals=totals,
            known_classes=same,
            knowledge=knowledge,
            names=tuple(map(str, source.meta.get("class_names", ()))),
            sources=sources,
            examples=shown,
        )

    def stage(self, task: Task) -> "Stage":
        """The rows of a task, and the transform that a run would have."""
        labels, private = task.labels(self.labels), task.private
        shown = np.zeros(len(private), bool)
        if self.examples:
            shown = _first_of_each(labels, self.examples, task.number)
        taken = np.ones(len(self.public), bool)
        taken[task.public] = False
        posed = torch.from_numpy(self.public.embeddings[taken])
        transform = self.raw.transform(self.totals.without(posed, self.public.labels[taken]))
        transform = self._knowing(transform, task, private[shown], labels[shown])
        return Stage(
            task=replace(task, private=private[~shown]),
            rows=self.rows,
            labels=torch.from_numpy(labels[~shown]),
            transform=transform,
        )

    def _knowing(
        self,
        transform: PublicTransform,
        task: Task,
        shown: np.ndarray,
        labels: np.ndarray,
    ) -> PublicTransform:
        """The transform with guesses of the task's classes, as a run has them of the real ones."""
        several = self.method != DEFAULT
        names = [] if several or not self.names else [self.names[k] for k in task.classes]
        if not names or (self.sources is None and not self.examples and not self.known_here):
            return transform
        knowledge, public = replace(self.knowledge, names=None), self.public.subset(task.public)
        with tempfile.TemporaryDirectory() as folder, redirect_stderr(io.StringIO()):
            if not self.known_here:
                knowledge = replace(knowledge, examples=NONE)
            if self.examples:
                knowledge = replace(knowledge, examples=Path(folder) / "examples")
                rows = self.rows[torch.from_numpy(shown), 1:].numpy()
                meta = {"class_names": names}
                examples = EmbeddingSet(embeddings=rows, labels=labels, meta=meta)
                examples.save(Path(folder) / "examples")
            return added_to(knowledge, transform, public, names, self.sources)

    @property
    def drawn_from(self) -> int:
        """Rows of the first task's classes, of which all tasks' are where these are the same."""
        if self.method != DEFAULT:
            return len(self.labels)
        return int(np.isin(self.labels, self.tasks[0].classes).sum())

    @property
    def method(self) -> str:
        """The method that `run` takes by default: of classes, or of several findings a picture."""
        return DEFAULT if self.labels.ndim == 1 else for_findings(DEFAULT)

    @property
    def measures(self) -> tuple[str, str]:
        """Names of the two figures that `Played` calls accuracy and balanced."""
        findings = "all findings right", "area under ROC"
        return ("accuracy", "balanced accuracy") if self.method == DEFAULT else findings

    @cached_property
    def known_here(self) -> bool:
        """Whether public rows have the classes of the tasks."""
        first = self.tasks[0]
        return bool(np.isin(self.public.labels[first.public], first.classes).any()) and (
            len(self.rows) == len(self.public)
        )

    def promise(self, epsilon: float) -> Privacy:
        """The promise with this ε."""
        return replace(self.privacy, epsilon=epsilon)

    def request(
        self,
        stage: "Stage",
        epsilon: float,
        users: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ReleaseRequest:
        """Request that `run` would make; built once for all seeds."""
        users, options = users or self.sizes.users, self.options if options is None else options
        key = epsilon, users, str(options)
        if key not in stage.requests:
            stage.requests[key] = ReleaseRequest(
                embeddings=replace(self.sizes, users=users).federation,
                method=self.method,
                privacy=self.promise(epsilon),
                transform=stage.transform,
                options=options,
            )
        return stage.requests[key]

    def play(self, stage: "Stage", seed: int, epsilon: float, users: int | None = None) -> Played:
        """One whole release, and its accuracy on test rows of the task."""
        sizes = replace(self.sizes, users=users or self.sizes.users)
        state = stage.release(self.request(stage, epsilon, users), sizes, seed)
        right = stage.measure(state, self.sizes, seed)
        number = stage.task.number
        if not self.promise(epsilon).private:
            return Played(number, seed, "no privacy", None, sizes.users, *right)
        return Played(number, seed, "private", epsilon, sizes.users, *right)

    def baselines(self, stage: "Stage", seed: int) -> Iterator[Played]:
        """The largest class, and, where classes are known, public knowledge alone."""
        number, users = stage.task.number, self.sizes.users
        _, test = stage.task.split(seed, self.sizes.rows)
        share = largest_share(stage.labels[torch.from_numpy(test)])
        chance = 1 / self.sizes.num_classes if self.method == DEFAULT else 0.5
        yield Played(number, seed, "largest class", None, users, share, chance)
        if stage.transform.known is not None:
            right = stage.measure(self.public_alone(stage), self.sizes, seed)
            yield Played(number, seed, "public alone", None, users, *right)

    def public_alone(self, stage: "Stage") -> ReleaseState:
        """State of a release whose sum holds no private row: public knowledge alone."""
        method = self.request(stage, 1.0, options={"sums": 1, "class_noise": 0.0}).built
        nothing = torch.zeros(method.statistic.dimension, dtype=torch.float64)
        return ReleaseState(method).advance(nothing, self.sizes.rows, NOTHING)

    def played(self, epsilons: Sequence[float]) -> Iterator[tuple[Played, ...]]:
        """All tasks with all seeds, for every ε and without noise, beside the baselines."""
        for task in self.tasks:
            stage = self.stage(task)
            for seed in range(SEEDS):
                yield tuple(self.baselines(stage, seed))
                for epsilon in (*epsilons, math.inf):
                    yield (self.play(stage, seed, epsilon),)

    def needed(self, epsilon: float, *, more: Literal["users", "epsilon"]) -> float | None:
        """Users, or ε, of the first doubling that gains `GAIN` on a few tasks; None: none does."""
        before = self._few_played(epsilon)

        def enough(factor: int) -> bool:
            if more == "users":
                after = self._few_played(epsilon, factor * self.sizes.users)
            else:
                after = self._few_played(factor * epsilon)
            return bool((after - before).mean() >= GAIN)

        if not enough(DOUBLINGS[-1]):
            return None
        factor = next((each for each in DOUBLINGS[:-1] if enough(each)), DOUBLINGS[-1])
        return factor * (self.sizes.users if more == "users" else epsilon)

    def _few_played(self, epsilon: float, users: int | None = None) -> np.ndarray:
        """(`FEW`,) balanced accuracies."""
        return np.array([self.play(stage, 0, epsilon, users).balanced for stage in self._few])

    @cached_property
    def _few(self) -> list["Stage"]:
        return [self.stage(task) for task in self.tasks[:FEW]]

    def proposed_clips(self, epsilon: float) -> tuple[float, float]:
        """Users' clips of the first sum and of the other: median lengths of what users would send.

        These are users of public rows, like the federation's. Nothing private is looked at, so the
        clip may be as short as serves: noise grows with it, and from the shortest vector down the
        signal shrinks as much.
        """
        sizes, found = self.sizes, list[list[float]]()
        usual = math.sqrt(sizes.rows_per_user)
        for task in self.tasks[:CLIPPED]:
            stage = self.stage(task)
            method = self.request(stage, epsilon, options={"user_clip": (usual, usual)}).built
            assert method.first is not None
            assert method.transform is not None
            held = stage.users(sizes, seed=0)
            missing = sizes.rows_per_user / int(held.sizes.max())
            mapped = replace(held, x=method.transform.map_rows(held.x))
            pair = (held, method.first), (mapped, method.statistic)
            found.append([missing * lengths(*each).median().item() for each in pair])
        first, own = np.mean(found, 0)
        return float(f"{first:.3g}"), float(f"{own:.3g}")

    def cost(self, stage: "Stage", epsilon: float) -> tuple[int, float]:
        """Bytes that a user sends in all sums, and seconds that its vectors and noise take."""
        request = self.request(stage, epsilon)
        method, plan = request.built, request.planned(discrete=True)
        one = stage.users(replace(self.sizes, users=1), seed=0)
        began = time.perf_counter()
        assert method.transform is not None
        for statistic in (method.first, method.statistic):
            if statistic is not None:
                first = statistic is method.first
                rows = one.x if first else method.transform.map_rows(one.x)
                for chunk in replace(one, x=rows).chunks():
                    discrete_gaussian(STEPS, statistic.submit(chunk).numel())
        seconds = time.perf_counter() - began
        return sum(each.bytes_per_user(plan.sizes) for each in plan.sums), seconds


@dataclass(frozen=True, kw_only=True)
class Stage:
    """A task with its rows and its transform."""

    task: Task
    rows: Tensor  # (N, D + 1) raw rows of the source
    labels: Tensor  # (m,) in [0, K), of the task's private ones
    transform: PublicTransform  # from raw coordinates
    # by ε, users and options
    requests: dict[tuple[float, int, str], ReleaseRequest] = field(default_factory=dict)

    def users(self, sizes: Sizes, seed: int) -> RowsInMemory:
        """Users like those of `sizes`, as far as there are public rows for them."""
        chosen, _ = self.task.split(seed, sizes.rows)
        labels = self.labels[torch.from_numpy(chosen)]
        generator = torch.Generator().manual_seed(seed)
        alike = torch.zeros(len(labels), dtype=torch.int64)  # the partition knows no classes
        rows, partition = sizes.stand_in(len(labels)).place(alike, None, generator)
        own = torch.from_numpy(self.task.private[chosen])[rows]
        return RowsInMemory(self.rows[own], labels[rows], partition)

    def release(self, request: ReleaseRequest, sizes: Sizes, seed: int) -> ReleaseState:
        """All sums of users like those of `sizes`, with float noise."""
        held = self.users(sizes, seed)
        generator = torch.Generator().manual_seed(SEEDS * self.task.number + seed)

        def draw(_: int, dimension: int) -> Tensor:
            return torch.randn(dimension, generator=generator, dtype=torch.float64)

        every = request.size.sizes
        return released(request.built, None, held, every, request.privacy, draw)

    def measure(self, state: ReleaseState, sizes: Sizes, seed: int) -> tuple[float, float]:
        """Accuracy and balanced accuracy on test rows; of findings, see `Rehearsal.measures`."""
        _, test = self.task.split(seed, sizes.rows)
        rows = self.rows[torch.from_numpy(self.task.private[test])]
        rows, weights = state.final_rows(rows), state.fitted().weights
        labels = self.labels[torch.from_numpy(test)]
        if labels.ndim == 1:
            return accuracies(rows, labels, iter([weights]))[0]
        return right_findings(rows.double() @ weights, labels.numpy())


def lengths(users: RowsInMemory, statistic: Statistic) -> Tensor:
    """(users,) L2 norms of what every user submits, scaled, less what as many public rows would."""
    own, scale = statistic.unclipped, statistic.scale
    found = []
    for chunk in users.chunks():
        sent = own.submit(chunk)
        if own.expected_row is not None:
            sent = sent - chunk.counts.double()[:, None] * own.expected_row
        found.append((sent * scale).norm(dim=1))
    return torch.cat(found)


def _known_classes(
    public: EmbeddingSet, like: EmbeddingSet | None, sizes: Sizes, knowledge: Knowledge
) -> list[int] | None:
    """Labels of public rows that are the private classes; None: these are unknown there.

    They are where --names are among the names of public classes, and where `like` is the public set
    itself with as many classes.
    """
    names = knowledge.names or ()
    classes = public.findings is None and (like is None or like.findings is None)
    if classes and knowledge.examples is None and examples_of(public, names) is not None:
        place = {
            str(n).replace("_", " ").casefold().strip(): k
            for k, n in enumerate(public.meta.get("class_names", ()))
        }
        return [place[name.replace("_", " ").casefold().strip()] for name in names]
    own = np.unique(public.labels)
    if (
        public.findings is None
        and like is not None
        and like.content_hash() == public.content_hash()
    ):
        return own.tolist() if len(own) == sizes.num_classes else None
    return None


def _first_of_each(labels: np.ndarray, count: int, task: int) -> np.ndarray:
    """(m,) bool mask of `count` rows of each class, half of them at most; drawn by the task."""
    order = np.random.default_rng([task, 2]).permutation(len(labels))
    shown = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        own = order[labels[order] == label]
        shown[own[: min(count, len(own) // 2)]] = True
    return shown
