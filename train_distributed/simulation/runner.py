"""Many releases of the same users: methods x promises x partitions x seeds, as simulations."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice, product
from typing import get_args

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.class_prior import Word, prior_shift, with_shift
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.one_shot.statistic import Statistic
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.plan import Grid, MethodConfig, Result, Scenario, Trial, held_out
from train_distributed.simulation.shared_training import RowsInMemory, released, totals

Mapped = Iterator[tuple[PublicTransform, Tensor]]  # transform of the rows, (d, K) weights of them
Rivals = Callable[[Trial, Grid, RowsInMemory, PublicTransform], Mapped]
SCORED = 64  # weights that are tested together
SHARES: tuple[str, str] = ("accuracy", "balanced_accuracy")
Accuracies = tuple[float, float]  # of all rows, and the mean of those of every class
ByPrior = Mapping[str, Mapping[str, float]]
Found = tuple[float, float, ByPrior | None]  # accuracies, and those under every prior


def run_trials(
    embeddings: EmbeddingSet,
    transforms: Mapping[str, PublicTransform],
    plan: Grid,
    *,
    finished: Collection[str] = (),
    rivals: Rivals | None = None,
) -> Iterator[tuple[str, list[Result]]]:
    """Yields (key, results) of each unfinished trial.

    `rivals` trains what is not one of METHODS, for every promise of the plan.

    A seed fixes the partition, the test rows and the noise; a trial's results do not depend on
    which others were run. Labels of test rows are read to report accuracies: choosing a setting by
    them costs privacy that no ε here accounts for.
    """
    embeddings.need_labels()
    stage = _Stage(embeddings, transforms, plan, rivals)
    for job in plan.trials():
        if job.key not in finished:
            yield job.key, stage.play(job)


class _Stage:
    """Values that consecutive jobs share: rows, a partition, sums that need no partition."""

    def __init__(
        self,
        embeddings: EmbeddingSet,
        transforms: Mapping[str, PublicTransform],
        plan: Grid,
        rivals: Rivals | None,
    ) -> None:
        self.embeddings, self.transforms, self.plan = embeddings, transforms, plan
        self.rivals = rivals
        self.labels = torch.tensor(embeddings.labels)
        self.rows = lru_cache(1)(self._rows)
        self.held = lru_cache(1)(self._held)
        self.sums: dict[object, list[Tensor]] = {}
        self.known: dict[object, list[Found]] = {}

    def play(self, job: Trial) -> list[Result]:
        name = job.family[0].transform
        held, test = self.held(name, job.scenario, job.seed)
        cells = partial(self._cells, job, held, largest_share(self.labels[test]))
        if self.rivals and job.family[0].method not in METHODS:
            x, y = self.rows(name)[test], self.labels[test]
            made = self.rivals(job, self.plan, held, self.transforms[name])
            found = [accuracies(t.map_rows(x), y, iter([w]))[0] for t, w in made]
            return cells([(*each, None) for each in found])
        sizes = job.scenario.sizes(held.sizes)
        key = (job.family[0].training, sizes.sort().values.numpy().tobytes(), job.seed)
        found = self.known.get(key, [])
        if not found:
            found = self._played(job, held, sizes, test)
        if job.shared:  # equal sums, sizes and noise: equal releases
            self.known[key] = found
        return cells(found)

    def _played(self, job: Trial, held: RowsInMemory, sizes: Tensor, test: Tensor) -> list[Found]:
        """Accuracies of every setting of the family under every promise."""
        transform = self.transforms[job.family[0].transform]
        pairs = list(product(job.family, self.plan.promises))
        methods = [self._method(setting, transform, sizes, promise) for setting, promise in pairs]
        states = (
            released(method, total, held, sizes, promise, partial(job.noise, promise))
            for method, total, (_, promise) in zip(
                methods, self._totals(job, held, methods), pairs, strict=True
            )
        )
        x, y = self.rows(job.family[0].transform)[test], self.labels[test]
        constant = transform.constant
        if not any(_mapped(method) for method in methods):
            return under_priors(x, y, (each.fitted() for each in states), constant)
        moved = ((each.final_rows(x), each.fitted()) for each in states)
        return [under_priors(rows, y, [fit], constant)[0] for rows, fit in moved]

    def _method(
        self, setting: MethodConfig, transform: PublicTransform, sizes: Tensor, promise: Privacy
    ) -> Method:
        """The method with what `run` fills in, unless its options are complete."""
        if setting.complete:
            return build_method(setting.method, transform, self.plan.num_classes, setting.options)
        return ReleaseRequest(
            embeddings=FederationSize(sizes=sizes, num_classes=self.plan.num_classes),
            method=setting.method,
            privacy=promise,
            transform=transform,
            options=setting.options,
        ).built

    def _cells(
        self, job: Trial, held: RowsInMemory, majority: float, found: Sequence[Found]
    ) -> list[Result]:
        users, rows = len(held.sizes), int(held.sizes.sum())
        pairs = product(job.family, self.plan.promises)
        return [
            Result(
                setting.label,
                setting.method,
                job.scenario.name,
                None if math.isinf(promise.epsilon) else promise.epsilon,
                job.seed,
                accuracy,
                dict(setting.options),
                setting.transform,
                users,
                rows,
                promise.delta,
                balanced,
                majority,
                by_prior,
            )
            for (setting, promise), (accuracy, balanced, by_prior) in zip(pairs, found, strict=True)
        ]

    def _rows(self, name: str) -> Tensor:
        return self.transforms[name](self.embeddings.embeddings)

    def _held(self, name: str, scenario: Scenario, seed: int) -> tuple[RowsInMemory, Tensor]:
        train, test = held_out(self.embeddings.labels, self.embeddings.split, self.plan.folds, seed)
        labels = self.labels[train]
        users = self.embeddings.users
        writers = None if users is None else torch.tensor(users[train])
        rows, partition = scenario.place(labels, writers, torch.Generator().manual_seed(seed))
        x = self.rows(name)[torch.from_numpy(train)[rows]]
        return RowsInMemory(x, labels[rows], partition), torch.from_numpy(test)

    def _totals(
        self, job: Trial, held: RowsInMemory, methods: list[Method]
    ) -> Sequence[Tensor | None]:
        """Sums, from an earlier job where the partition makes no difference to them.

        None: each release has its own, of rows that are mapped for its noise.
        """
        statistics = [method.statistic for method in methods]
        if any(_mapped(method) for method in methods) or not _trained_alike(statistics):
            return [None] * len(methods)
        if not job.shared and job.scenario.users != 1:
            return totals(held, statistics)
        part = job.scenario.rows_per_user and (job.scenario.users, job.scenario.rows_per_user)
        drawn = bool(part) or self.plan.folds is not None
        key = (job.family[0].training, part, job.seed if drawn else None)
        if key not in self.sums:
            self.sums[key] = totals(held, statistics[:1] if job.shared else statistics)
        return self.sums[key] * len(methods) if job.shared else self.sums[key]


def _mapped(method: Method) -> bool:
    """Whether its rows are others than the raw ones."""
    return method.transform is not None and method.transform.directions is not None


def _trained_alike(statistics: Sequence[Statistic]) -> bool:
    """Whether one training serves all of them."""
    heads = [each.unclipped for each in statistics]
    free = [each.without_radius for each in heads if isinstance(each, TrainedHeads)]
    return all(head == free[0] for head in free)


def largest_share(y: Tensor) -> float:
    """Accuracy of always answering with the most frequent of (n,) labels, or (n, K) findings."""
    return int(y.unique(dim=0, return_counts=True)[1].max()) / len(y)


def under_priors(x: Tensor, y: Tensor, fits: Iterable[Fitted], constant: float) -> list[Found]:
    """Accuracies, as fitted and under other priors, on rows (n, d) that begin with `constant`."""
    names: list[list[str]] = []

    def weights() -> Iterator[Tensor]:
        for each in fits:
            known = _for_priors(each, constant)
            names.append(list(known))
            yield from (each.weights, *known.values())

    values = iter(accuracies(x, y, weights()))
    return [
        (*next(values), {n: dict(zip(SHARES, next(values), strict=True)) for n in own} or None)
        for own in names
    ]


def _for_priors(fitted: Fitted, constant: float) -> dict[str, Tensor]:
    """(d, K) weights for every prior, where a classifier can be had for any."""
    shares, prior = fitted.class_shares, fitted.prior
    if shares is None or prior is None:
        return {}
    shifts = {word: prior_shift(word, prior, shares, fitted.temperature) for word in get_args(Word)}
    return {word: with_shift(fitted.weights, shift, constant) for word, shift in shifts.items()}


def accuracies(x: Tensor, y: Tensor, weights: Iterator[Tensor]) -> list[Accuracies]:
    """Accuracy and balanced accuracy of each (d, K) on rows (n, d) with labels (n,)."""
    values: list[Accuracies] = []
    counts = torch.bincount(y).double()
    shares = torch.where(counts > 0, 1 / counts, 0.0)[y] / (counts > 0).sum()
    while block := list(islice(weights, SCORED)):
        scores = x @ torch.cat(block, 1).to(x.dtype)
        hits = (scores.unflatten(1, (len(block), -1)).argmax(2) == y[:, None]).double()
        values += zip(hits.mean(0).tolist(), (shares @ hits).tolist(), strict=True)
    return values
