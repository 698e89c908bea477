"""The experiments: tables of trials, and how their results are shown.

A trial is a `MethodConfig` (label, method, options, transform) in a `Scenario`, with a seed, at
every ε of the `Conditions`.
"""

import math
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.identity import known_rows
from pretrain.cli.output import new_file
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.research.experiments import convergence, rivals
from train_distributed.research.experiments.checkpoint import Cells, Work
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.experiments.figures import draw_frontier, table
from train_distributed.research.rivals.learn import train
from train_distributed.simulation.plan import (
    Grid,
    MethodConfig,
    Result,
    Scenario,
    Trial,
    held_out,
)
from train_distributed.simulation.runner import run_trials
from train_distributed.simulation.shared_training import RowsInMemory

OURS, PUBLISHED = "ours", "published"  # transforms
PAPER_QUANTILE = 0.955
PAPER_CONSTANT = 1 / 32  # the published 1 at c = 34.854, in units of c
MORE_DATA = 67  # Table 2 of the paper
PAPER_L2_REGS = {"softmax": (0.003, 0.01, 0.03, 0.1, 0.3), "svm": (0.01, 0.03, 0.1, 0.3)}
PAPER_RADII = (0.5, 1.0, 2.0, 3.0, 10.0)


# Methods.


def ours() -> list[MethodConfig]:
    """The default of `run`, and blind averaging as `run` does it."""
    labels = {"ours": "discriminant", "ours, softmax heads": "softmax"}
    return [MethodConfig(label, method, OURS) for label, method in labels.items()]


def published() -> list[MethodConfig]:
    """The paper's two methods on raw embeddings, their hyper-parameters searched per cell.

    Λ and R are in units of the clipped rows, whose norm is about 1: the published softmax Λ 1 … 30
    and R .1 … 1 at c = 34.854 are 8e-4 … .025 and 3.5 … 35 here, the SVM's Λ 10 … 200 and R .04 …
    .08 are .008 … .16 and 1.4 … 2.8; the search covers what is good on our embeddings. Every user
    finds the minimiser and projects it, in place of 150 or 500 epochs of projected SGD.
    """
    return [
        MethodConfig(
            f"{name} as published",
            method,
            PUBLISHED,
            {"l2_reg": l2_reg, "radius": radius, "bound": "paper"},
            complete=True,
        )
        for method, name in (("softmax", "softmax"), ("svm", "SVM"))
        for l2_reg, radius in product(PAPER_L2_REGS[method], PAPER_RADII)
    ]


# Partitions.


def as_asked(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """A partition for each number of users and scheme, of so many rows a user."""
    return _placed(conditions, conditions.rows_per_user)


def equal_sizes(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """A partition for each number of users and scheme, all users with as many rows (Fig. 5)."""
    return _placed(conditions, conditions.rows_per_user or _each(conditions, private))


def to_one_class(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """From IID to one class per user, with more data too, and by writer where users are named."""
    w = max(conditions.users)
    partitions = [
        Scenario(users=w),
        Scenario(users=w, scheme="dirichlet", concentration=1.0),
        Scenario(users=w, scheme="dirichlet", concentration=0.1),
        Scenario(users=w, scheme="one-class"),
        Scenario(
            users=w, scheme="one-class", stands_for=(MORE_DATA * w, _each(conditions, private))
        ),
    ]
    by_writer = [Scenario(users=None, scheme="by-writer")]
    return partitions + (by_writer if private.users is not None else [])


def _placed(conditions: Conditions, rows: int | None) -> list[Scenario]:
    return [
        Scenario(users=w, scheme=scheme, rows_per_user=rows)
        for w, scheme in product(conditions.users, conditions.schemes)
    ]


def _each(conditions: Conditions, private: EmbeddingSet) -> int:
    """Training rows for each of the largest number of users."""
    train, _ = held_out(private.labels, private.split, conditions.folds, 0)
    return len(train) // max(conditions.users)


# Trials.


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

    def jobs(done: Mapping[str, Cells]) -> Iterator[tuple[str, Cells]]:
        found = run_trials(private, transforms, grid, finished=done, rivals=by_rival)
        return ((key, [cell.as_dict() for cell in cells]) for key, cells in found)

    return Work(tuple(trial.key for trial in grid.trials()), jobs)


def by_rival(
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
        request = ReleaseRequest(
            method=setting.method,
            embeddings=EmbeddingSet(embeddings=rows, labels=held.y.numpy()),
            transform=PublicTransform.identity(mapped.dim - 1, mapped.clip_norm, mapped.constant),
            num_classes=classes,
            partition=held.partition,
            privacy=promise,
            noise="float",
            generator=torch.Generator().manual_seed(zlib.crc32(words.encode())),
            options=options,
        )
        yield mapped, train(request).weights


# Experiments.


class Experiment(Protocol):
    """An experiment: its trials, and how results.json becomes a table and a figure."""

    def work(self, conditions: Conditions, private: Any, public: Any) -> Work:
        """The trials, on embedding sets or on None."""
        ...

    def tell(self, result: Mapping[str, Any]) -> str:
        """The table."""
        ...

    def draw(self, result: Mapping[str, Any], file: IO[bytes]) -> None:
        """Writes the figure as PNG."""
        ...


@dataclass(frozen=True)
class Comparison:
    """Methods on partitions, at every ε and seed; a line of the figure for each method."""

    partitions: Callable[[Conditions, EmbeddingSet], list[Scenario]]
    panel: str  # field of a cell that has a panel for each of its values
    lines: tuple[str, ...]  # fields that have a line for each of theirs
    x: Literal["epsilon", "users"] = "epsilon"
    methods: tuple[MethodConfig, ...] = (*ours(), *published())

    def work(self, conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
        """Every method on each partition."""
        partitions = self.partitions(conditions, private)
        return trials(self.methods, partitions, conditions, private, public)

    def tell(self, result: Mapping[str, Any]) -> str:
        """Accuracy by panel and line, a column per value of x."""
        return table(_cells(result), (self.panel, *self.lines), self.x)

    def draw(self, result: Mapping[str, Any], file: IO[bytes]) -> None:
        """Accuracy against x."""
        used = result["configuration"]
        users = ", ".join(f"{users:,}" for users in used["users"])
        folds = f" x {used['folds']} folds" if used["folds"] else ""
        data = Path(str(result["embeddings"].get("data", ""))).name
        shown = f"{data}, δ = {used['delta']:g}, {used['seeds']} seeds{folds}"
        draw_frontier(
            _cells(result),
            file,
            title=f"Accuracy of one model of {users} users ({shown})",
            chance=1 / int(result["num_classes"]),
            panel=self.panel,
            lines=self.lines,
            x=self.x,
        )


def _cells(result: Mapping[str, Any]) -> list[Result]:
    return [Result(**cell) for cell in result["cells"]]


WITH_DP_SGD = (*ours(), *published(), MethodConfig("DP-FL", "dp-fl", OURS))  # by Opacus
EXPERIMENTS: dict[ExperimentName, Experiment] = {
    "frontier": Comparison(as_asked, "scheme", ("label", "users")),
    "users": Comparison(equal_sizes, "epsilon", ("label", "scheme"), "users", WITH_DP_SGD),
    "non-iid": Comparison(to_one_class, "label", ("scheme",)),
    "rivals": rivals,
    "convergence": convergence,
}


def tell(result: Mapping[str, Any]) -> str:
    """The table of a sweep's result, the content of results.json."""
    return EXPERIMENTS[result["experiment"]].tell(result)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Writes the PNG of a sweep's result, whole or not at all."""
    with new_file(path) as partial, partial.open("wb") as file:
        EXPERIMENTS[result["experiment"]].draw(result, file)
