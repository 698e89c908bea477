"""Rivals on the private test rows against what `select` chooses on public data."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from embed import EmbeddingSet
from embed.transform_options import TransformOptions
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Rows
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Done, Sets, Stage, Work
from train_distributed.simulation.clip_candidates import clipped
from train_distributed.simulation.plan import Grid, MethodConfig, Result, place
from train_distributed.simulation.rehearsal import Candidates, Sizes
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.tournament import Tournament, candidates_of

CHOSEN = "ours, chosen by select"
COMPONENTS = (32, 64, 128, 256)  # without a clip
CLIP_QUANTILE = 0.25  # of the rows there
REHEARSED = 2  # partitions and noises per public task

Federations = Mapping[Sizes, Sequence[Scenario]]  # what is rehearsed, and what is then run


def against_choice(
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
    rivals: Sequence[MethodConfig],
) -> Work:
    """All candidates and rivals in every scenario, and what `select` chooses for each ε.

    Rivals name the paper's raw transform.
    """
    federations: dict[Sizes, list[Scenario]] = {}
    for sizes, scenario in placed(conditions, private):
        whoever = replace(sizes, scheme="iid")  # sums do not depend on who holds which rows
        federations.setdefault(whoever, []).append(scenario)
    scenarios = [scenario for each in federations.values() for scenario in each]
    sets, promises = Sets(private, public), conditions.promises
    plan = {"scenarios": scenarios, "promises": promises, **_repeated(conditions)}
    stages = sets.stages(rivals, {}, **plan)

    def offered(sizes: Sizes, promise: Privacy) -> Candidates:
        rounds = conditions.rounds
        return candidates_of(sizes, promise, public.dim, centre="private", rounds=rounds)

    ours = selection_work(conditions, sets, offered, federations, promises)
    return Work.joined([*(stage.work for stage in stages), ours])


def user_level(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """All records of a user protected: without and with users' clips, each as `select` chooses.

    Without a clip the noise is so large that fewer directions than `select` tries by itself may be
    best, and no moments.
    """
    promises = [replace(promise, unit="user") for promise in conditions.promises]
    federations: Federations = {sizes: [users] for sizes, users in placed(conditions, private)}
    if private.users is not None:
        writers, rows = np.unique(private.users[private.split == 0], return_counts=True)
        classes = len(private.meta["class_names"])
        own = Sizes(users=len(writers), rows_per_user=round(rows.mean()), num_classes=classes)
        federations = {own: [Scenario(users=None, scheme="by-writer")]}

    def bare(sizes: Sizes, promise: Privacy) -> Candidates:
        return few_directions(public.dim)

    def with_clips(sizes: Sizes, promise: Privacy) -> Candidates:
        return clipped(candidates_of(sizes, promise, public.dim, centre="public"), public, sizes)

    offers = {"no users' clip": bare, "users' clip": with_clips}
    sets = Sets(private, public)
    return Work.joined(
        selection_work(conditions, sets, offered, federations, promises, label=label)
        for label, offered in offers.items()
    )


def placed(conditions: Conditions, private: EmbeddingSet) -> list[tuple[Sizes, Scenario]]:
    """One federation per number of users and scheme: what is rehearsed, and what is then run."""
    train, classes = int((private.split == 0).sum()), len(private.meta["class_names"])
    places = []
    for users, scheme in product(conditions.users, conditions.schemes):
        n = conditions.rows_per_user or train // users
        sizes = Sizes(users=users, rows_per_user=n, num_classes=classes, scheme=scheme)
        places.append((sizes, Scenario(users=users, scheme=scheme, rows_per_user=n)))
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
        for moments in (True, False)
    ]
    return Candidates(tuple(settings), grid)


def selection_work(
    conditions: Conditions,
    sets: Sets,
    offered: Callable[[Sizes, Privacy], Candidates],
    federations: Federations,
    promises: Iterable[Privacy],
    *,
    label: str = "",
) -> Work:
    """Candidates in federations, and what `select` chooses among them for each promise.

    Args:
        conditions: of the experiment.
        sets: rows that all are compared on, and those of the rehearsals and transforms.
        offered: settings to choose from.
        federations: which scenarios have a choice in common.
        promises: one choice each.
        label: of the candidates' rows, where there are several such works.
    """
    names, known = sets.whole.meta["class_names"], sets.public.meta.get("class_names", ())
    new = sets.public.labels is not None and known and set(known).isdisjoint(names)
    tournaments = {
        (sizes, promise): Tournament(
            public=sets.public,
            sizes=sizes.of_new_classes(len(np.unique(sets.public.labels))) if new else sizes,
            privacy=promise,
            candidates=offered(sizes, promise),
            tasks=conditions.tasks,
            seeds=REHEARSED,
        )
        for sizes, promise in product(federations, promises)
    }
    every = {o: o for each in tournaments.values() for o in each.candidates.transforms.values()}
    coordinates, fitted = sets.compressed(every)
    works = []
    for (sizes, promise), tournament in tournaments.items():
        candidates = tournament.candidates
        grid = Grid(
            settings=[replace(s, label=label or s.label) for s in candidates.settings],
            scenarios=federations[sizes],
            promises=[promise],
            num_classes=len(names),
            **_repeated(conditions),
        )
        transforms = {name: fitted[o] for name, o in candidates.transforms.items()}
        name = f"{label or 'ours'}, {sizes.name}, epsilon {promise.epsilon}"
        played = Stage(grid, coordinates, transforms, name).work
        said = f"{label}, chosen by select" if label else CHOSEN
        works += [played, _choice(tournament, played, f"rehearsal, {name}: ", said)]
    return Work.joined(works)


def _choice(tournament: Tournament, played: Work, prefix: str, label: str) -> Work:
    """A tournament; what was `played` with the setting that wins it, with a label of its own."""

    def own(done: Done) -> dict[str, Rows]:
        return {k.removeprefix(prefix): rows for k, rows in done.items() if k.startswith(prefix)}

    def chosen(done: Done) -> Rows:
        wanted = tournament.ranked(own(done))[0].place
        rows = played.collect(done)
        return [row | {"label": label} for row in rows if place(Result(**row)) == wanted]

    return Work(
        tournament.most,
        lambda done: ((prefix + key, rows) for key, rows in tournament.simulations(own(done))),
        chosen,
    )


def _repeated(conditions: Conditions) -> dict[str, Any]:
    return {"seeds": conditions.all_seeds, "folds": conditions.folds}
