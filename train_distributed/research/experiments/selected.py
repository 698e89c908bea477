"""Rivals on the private test rows against what a rehearsal on public data chooses."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Jobs, Sets, Stage, Work, joined
from train_distributed.simulation.clip_candidates import clipped
from train_distributed.simulation.plan import Grid, MethodConfig, Result, ranking
from train_distributed.simulation.rehearsal import Candidates, Sizes, rehearse
from train_distributed.simulation.scenario import Scenario

CHOSEN = "ours, chosen by select"
REHEARSAL = "rehearsal: "
COMPONENTS = (32, 64, 128, 256)  # without a clip
CLIP_QUANTILE = 0.25  # of the rows there
REHEARSED = 2  # partitions and noises per public task


def against_choice(
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
    rivals: Sequence[MethodConfig],
) -> Work:
    """All candidates and rivals in every scenario, and what its rehearsal chooses for each ε.

    Rivals name the paper's raw transform.
    """
    places = placed(conditions, private, public)
    candidates = Candidates.default(public.dim, rounds=conditions.rounds)
    study = SelectionStudy.of(conditions, private, public, candidates, places, conditions.promises)
    shared = {"promises": conditions.promises, "scenarios": list(study.scenarios.values())}
    more = {"seeds": conditions.all_seeds, "folds": conditions.folds}
    return study.work(Sets(private, public).stages(rivals, {}, **shared, **more))


def user_level(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """All records of a user protected: without and with users' clips, each as `select` chooses.

    Without a clip the noise is so large that fewer directions than `select` tries by itself may be
    best, and no moments.
    """
    promises = [replace(promise, unit="user") for promise in conditions.promises]
    places = placed(conditions, private, public)
    if private.users is not None:
        writers, rows = np.unique(private.users[private.split == 0], return_counts=True)
        classes = len(private.meta["class_names"])
        own = Sizes(users=len(writers), rows_per_user=round(rows.mean()), num_classes=classes)
        places = [(own, Scenario(users=None, scheme="by-writer"))]
    bare, default = few_directions(public.dim), Candidates.default(public.dim)
    return joined(
        SelectionStudy.of(conditions, private, public, offered, [place], promises, label).work(())
        for place in places
        for label, offered in (
            ("no users' clip", bare),
            ("users' clip", clipped(default, public, place[0])),
        )
    )


def placed(
    conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet
) -> list[tuple[Sizes, Scenario]]:
    """One federation per number of users and scheme: what is rehearsed, and what is then run."""
    train, names = int((private.split == 0).sum()), private.meta["class_names"]
    known = public.meta.get("class_names", ())
    new = public.labels is not None and known and set(known).isdisjoint(names)
    places = []
    for users, scheme in product(conditions.users, conditions.schemes):
        n = conditions.rows_per_user or train // users
        sizes = Sizes(users=users, rows_per_user=n, num_classes=len(names), scheme=scheme)
        scenario = Scenario(users=users, scheme=scheme, rows_per_user=n)
        places.append(
            (sizes.of_new_classes(len(np.unique(public.labels))) if new else sizes, scenario)
        )
    return places


def few_directions(dim: int) -> Candidates:
    """The discriminant with and without moments, on few and many principal components."""
    grid = {
        f"q={q}": TransformOptions(components=q, clip_quantile=CLIP_QUANTILE)
        for q in sorted({min(q, dim) for q in COMPONENTS})
    }
    settings = [
        MethodConfig("discriminant", "discriminant", name, {"moments": moments})
        for name in grid
        for moments in ("all", "none")
    ]
    return Candidates(tuple(settings), grid)


@dataclass(frozen=True)
class SelectionStudy:
    """Federations with choices of their own among the same candidates."""

    conditions: Conditions
    public: EmbeddingSet
    candidates: Candidates
    scenarios: Mapping[Sizes, Scenario]  # what is rehearsed, and what is then run
    promises: Sequence[Privacy]
    grid: Stage  # all candidates on the private rows
    label: str = ""  # of the candidates' rows, where there are several studies

    @classmethod
    def of(
        cls,
        conditions: Conditions,
        private: EmbeddingSet,
        public: EmbeddingSet,
        candidates: Candidates,
        places: Sequence[tuple[Sizes, Scenario]],
        promises: Sequence[Privacy],
        label: str = "",
    ) -> "SelectionStudy":
        """The study of these federations; transforms are fitted on the whole public set."""
        scenarios = dict(places)
        plan = Grid(
            settings=[replace(each, label=label or each.label) for each in candidates.settings],
            scenarios=list(scenarios.values()),
            promises=promises,
            seeds=conditions.all_seeds,
            num_classes=len(private.meta["class_names"]),
            folds=conditions.folds,
        )
        plan.validate()
        grid = Stage(plan, *Sets(private, public).compressed(candidates.transforms), label)
        return cls(conditions, public, candidates, scenarios, promises, grid, label)

    def choices(self, done: Mapping[str, Rows]) -> Rows:
        """The grid's rows of the setting that is chosen for each scenario and ε, labelled so."""
        keys = [key for key in done if key.startswith(self.prefix)]
        cells = [Result(**row) for key in keys for row in done[key]]
        found = self.grid.rows(done)
        label = f"{self.label}, chosen by select" if self.label else CHOSEN
        rows = []
        for federation, scenario in self.scenarios.items():
            best = ranking(cell for cell in cells if cell.scheme == federation.name)
            for promise in self.promises:
                epsilon = None if math.isinf(promise.epsilon) else promise.epsilon
                setting = best[epsilon][0].setting
                same = {
                    "method": setting.method,
                    "transform": setting.transform,
                    "options": dict(setting.options),
                    "scheme": scenario.name,
                    "users": federation.users,
                    "epsilon": epsilon,
                }
                rows += [
                    row | {"label": label}
                    for row in found
                    if all(row[name] == value for name, value in same.items())
                ]
        return rows

    @property
    def prefix(self) -> str:
        """Prefix of the keys of rehearsals."""
        return f"{REHEARSAL}{self.label}: " if self.label else REHEARSAL

    def work(self, stages: Sequence[Stage]) -> Work:
        """The rehearsals, then the rivals; among the grid's rows are the chosen ones."""

        def jobs(done: Mapping[str, Rows]) -> Jobs:
            finished = {k.removeprefix(self.prefix) for k in done if k.startswith(self.prefix)}
            for key, cells in rehearse(
                self.public,
                list(self.scenarios),
                self.promises,
                self.candidates,
                tasks=self.conditions.tasks,
                seeds=REHEARSED,
                finished=finished,
            ):
                yield self.prefix + key, [cell.as_dict() for cell in cells]
            for stage in (*stages, self.grid):
                yield from stage.jobs(done)

        def collect(done: Mapping[str, Rows]) -> Rows:
            rivals = [row for stage in (*stages, self.grid) for row in stage.rows(done)]
            return rivals + self.choices(done)

        families = len({setting.training for setting in self.candidates.settings})
        rehearsals = len(self.scenarios) * families * self.conditions.tasks * REHEARSED
        jobs_left = sum(len(stage.plan.trials()) for stage in (*stages, self.grid))
        return Work(rehearsals + jobs_left, jobs, collect)
