"""Rivals on the private test rows against what a rehearsal on public data chooses."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Done, Sets, Stage, Work, keyed
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
    candidates = Candidates.default(public.dim, rounds=conditions.rounds)
    places = placed(conditions, private, public)
    sets = (private, public, candidates, places, conditions.promises)
    return selection_work(conditions, *sets, rivals=rivals)


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
    return Work.joined(
        selection_work(conditions, private, public, offered, [place], promises, label=label)
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


def selection_work(
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
    candidates: Candidates,
    places: Sequence[tuple[Sizes, Scenario]],
    promises: Sequence[Privacy],
    *,
    label: str = "",
    rivals: Sequence[MethodConfig] = (),
) -> Work:
    """Rivals and candidates in federations, and what each federation's rehearsal chooses.

    Args:
        conditions: of the experiment.
        private: rows that all are compared on.
        public: rows of the rehearsals; transforms are fitted on all of them.
        candidates: settings to choose from.
        places: what is rehearsed, and what is then run.
        promises: one choice each.
        label: of the candidates' rows, where there are several such works.
        rivals: settings on raw embeddings.
    """
    sets = Sets(private, public)
    plan: dict[str, Any] = {"scenarios": [scenario for _, scenario in places]}
    plan |= {"promises": promises, "seeds": conditions.all_seeds, "folds": conditions.folds}
    settings = [replace(each, label=label or each.label) for each in candidates.settings]
    classes = len(private.meta["class_names"])
    all_of_them = Grid(settings=settings, num_classes=classes, **plan)
    grid = Stage(all_of_them, *sets.compressed(candidates.transforms), label).work
    prefix = f"{REHEARSAL}{label}: " if label else REHEARSAL
    families = len({setting.training for setting in candidates.settings})

    def rehearsals(finished: set[str]) -> Iterator[tuple[str, Sequence[Result]]]:
        return rehearse(
            public,
            [sizes for sizes, _ in places],
            promises,
            candidates,
            tasks=conditions.tasks,
            seeds=REHEARSED,
            finished=finished,
        )

    def chosen(done: Done) -> Rows:
        """The grid's rows of the setting that is chosen for each scenario and ε, labelled so."""
        cells = [Result(**row) for key in done if key.startswith(prefix) for row in done[key]]
        found = grid.collect(done)
        said, rows = {"label": f"{label}, chosen by select" if label else CHOSEN}, []
        for federation, scenario in places:
            best = ranking(cell for cell in cells if cell.scheme == federation.name)
            for promise in promises:
                epsilon = promise.epsilon if promise.private else None
                setting = best[epsilon][0].setting
                same = {
                    "method": setting.method,
                    "transform": setting.transform,
                    "options": dict(setting.options),
                    "scheme": scenario.name,
                    "users": federation.users,
                    "epsilon": epsilon,
                }
                rows += [row | said for row in found if same.items() <= row.items()]
        return rows

    total = len(places) * families * conditions.tasks * REHEARSED
    choice = Work(total, lambda done: keyed(prefix, done, rehearsals), chosen)
    stages = sets.stages(rivals, {}, **plan)
    return Work.joined([*(stage.work for stage in stages), grid, choice])
