"""Sources of public knowledge that the experiment `users` compares."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from embed import EmbeddingSet, PublicTransform
from embed.guesses import added_to
from embed.knowledge import NONE, Knowledge
from embed.transform_options import TransformOptions
from train_distributed.one_shot.defaults import KNOWING
from train_distributed.research.experiments.conditions import Conditions


def sources_of(conditions: Conditions) -> dict[str, Knowledge]:
    """Nothing, each source that is given, and all of them, by name; empty if none is given."""
    named: dict[str, Knowledge] = {}
    nothing = Knowledge(examples=NONE)
    names = replace(nothing, text_encoder=conditions.text_encoder, classifier=conditions.classifier)
    if conditions.text_encoder:
        named["names"] = names
    if conditions.examples:
        named["examples"] = Knowledge(examples=Path(conditions.examples))
    if len(named) == 2:
        named["both"] = replace(names, examples=Path(str(conditions.examples)))
    return {"nothing": nothing} | named if named else {}


def knowing_transforms(
    sources: Mapping[str, Knowledge], private: EmbeddingSet, public: EmbeddingSet
) -> dict[str, PublicTransform]:
    """One transform, with the guesses of each source.

    Raises ValueError for a private row among the examples.
    """
    from embed.fit import refuse_seen

    options = TransformOptions(components=min(KNOWING, public.dim), directions="mixed")
    fitted, names = options.fit(public), tuple(map(str, private.meta["class_names"]))
    told = {name: added_to(each, fitted, public, names) for name, each in sources.items()}
    for each in told.values():
        if each.seen is not None:
            refuse_seen(each.seen, private)
    return told
