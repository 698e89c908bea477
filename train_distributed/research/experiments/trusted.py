"""One trusted server: the default of `run` beside gradient descent that is tuned on test rows."""

from dataclasses import replace
from itertools import product

import torch

from embed import EmbeddingSet
from embed.directions import Directions
from embed.transform_options import TransformOptions
from train_distributed.one_shot.defaults import PublicFacts
from train_distributed.research.baselines.trusted_descent import NAME
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Sets, Stage, Work
from train_distributed.simulation.plan import Grid, MethodConfig
from train_distributed.simulation.scenario import Scenario

DEFAULT, ONE_SUM, TUNED = "default of run", "the same without further rounds", "descent, tuned"
DIRECTIONS: tuple[tuple[int, Directions], ...] = (
    (64, "principal"),
    (256, "principal"),
    (64, "mixed"),
    (256, "hedge"),
)
SEARCHED = {
    "rounds": (4, 16, 48),
    "centre": ("public", "private"),
    "clip": (0.1,),  # 0.4 was not better on two of our sets
    "noise": (0.35, 0.7, 1.4, 2.8),
}


def trusted_work(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy where one server is trusted with all rows, for each number of users and ε.

    Directions, rounds, centre, clip and learning rate of the descent are searched per cell on the
    test rows, which favours it; the default is a public rule.
    """
    classes, train = len(private.meta["class_names"]), int((private.split == 0).sum())
    grid = {f"{kind} {q}": TransformOptions(min(q, public.dim), kind) for q, kind in DIRECTIONS}
    searched = [
        MethodConfig(TUNED, NAME, name, dict(zip(SEARCHED, values, strict=True)))
        for name, *values in product(grid, *SEARCHED.values())
    ]
    promises = [replace(each, honest_fraction=1.0) for each in conditions.promises]
    places = [
        (w, Scenario(users=w, rows_per_user=conditions.rows_per_user)) for w in conditions.users
    ]
    plans = []
    for (users, scenario), promise in product(places, promises):
        sizes = torch.full((users,), conditions.rows_per_user or train // users)
        facts = PublicFacts(sizes=sizes, num_classes=classes, privacy=promise)
        settings = []
        for label, given in ((DEFAULT, {}), (ONE_SUM, {"rounds": 0})):
            name = f"{label} {users} {promise.epsilon}"
            open_ = "discriminant", TransformOptions(), given, public.dim
            grid[name], kept = facts.filled_in(*open_)
            options = facts.options("discriminant", kept)
            settings.append(MethodConfig(label, "discriminant", name, options))
        plans.append((f"default {users} {promise.epsilon}", settings, [scenario], [promise]))
    plans.append((TUNED, searched, [scenario for _, scenario in places], promises))
    rows, transforms = Sets(private, public).compressed(grid)
    shared = {"seeds": conditions.all_seeds, "folds": conditions.folds, "num_classes": classes}
    stages = [
        Stage(Grid(settings=s, scenarios=where, promises=p, **shared), rows, transforms, name)
        for name, s, where, p in plans
    ]
    return Work.joined(stage.work for stage in stages)
