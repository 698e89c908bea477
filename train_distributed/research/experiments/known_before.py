"""Knowledge of the classes before a run: its default with each public source, and with none."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from embed import EmbeddingSet, PublicTransform
from embed.directions import PublicMoments
from embed.fit import refuse_seen
from embed.guesses import Sources, added_to
from embed.knowledge import NONE, Knowledge
from embed.public_rows import checked_blocks
from embed.transform_options import TransformOptions
from train_distributed.one_shot.defaults import PublicFacts
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.work import Stage, Work
from train_distributed.simulation.plan import Grid, MethodConfig
from train_distributed.simulation.scenario import Scenario

METHOD = "discriminant"


def known_work(
    conditions: Conditions,
    private: EmbeddingSet,
    public: EmbeddingSet,
    scenarios: Sequence[Scenario],
) -> Iterator[Work]:
    """Every scenario, of users with so many rows each, and ε; nothing if no source is given.

    Raises ValueError for a private row among the examples.
    """
    sources = sources_of(conditions)
    found = {name: Sources.of(each, public) for name, each in sources.items()}
    moments = PublicMoments(public, checked_blocks(public))
    names = tuple(map(str, private.meta["class_names"]))

    def prepared(name: str, facts: PublicFacts) -> tuple[PublicTransform, MethodConfig]:
        knowing = sources[name].guesses
        options, own = facts.filled_in(METHOD, TransformOptions(), {}, public.dim, knowing=knowing)
        transform = PublicTransform.fit(public, moments=moments, **options.arguments())
        if knowing:
            transform = added_to(sources[name], transform, public, names, found[name])
            if transform.known is None:
                transform, setting = prepared("nothing", facts)
                return transform, replace(setting, label=f"known: {name}", transform=name)
            if transform.seen is not None:
                refuse_seen(transform.seen, private)
        own = facts.options(METHOD, own, placed=transform.placed)
        return transform, MethodConfig(f"known: {name}", METHOD, name, own)

    for scenario in scenarios if sources else ():
        for promise in conditions.promises:
            assert scenario.users is not None
            assert scenario.rows_per_user is not None
            facts = PublicFacts(
                sizes=torch.full((scenario.users,), scenario.rows_per_user),
                num_classes=len(names),
                privacy=promise,
            )
            made = {name: prepared(name, facts) for name in sources}
            plan = Grid(
                settings=[setting for _, setting in made.values()],
                scenarios=[scenario],
                promises=[promise],
                seeds=conditions.all_seeds,
                num_classes=len(names),
                folds=conditions.folds,
            )
            transforms = {name: transform for name, (transform, _) in made.items()}
            yield Stage(plan, private, transforms, f"known, epsilon {promise.epsilon}").work


def sources_of(conditions: Conditions) -> dict[str, Knowledge]:
    """Nothing, each source that is given, and all of them, by name; empty if none is given."""
    named: dict[str, Knowledge] = {}
    nothing = Knowledge(examples=NONE)
    names = replace(nothing, text_encoder=conditions.text_encoder)
    if conditions.text_encoder:
        named["names"] = names
    if conditions.examples:
        named["examples"] = Knowledge(examples=Path(conditions.examples))
    if len(named) == 2:
        named["both"] = replace(names, examples=Path(str(conditions.examples)))
    return {"nothing": nothing} | named if named else {}
