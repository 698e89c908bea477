"""Two embedding sets row by row, and two reports place by place."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from embed import EmbeddingSet
from embed.store import columns

OF_THE_SUM = ("class_prior",)  # of a report: read off the noised sum, which the promise covers


def aligned(first: EmbeddingSet, second: EmbeddingSet) -> EmbeddingSet:
    """The second set with every row where the first has it; the one that differs takes its place.

    What is done with rows afterwards is a matter of sums and random draws, for which places mean
    nothing; two sets are compared under one draw.
    """
    places: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    for place, row in enumerate(rows_of(second)):
        places[row].append(place)
    order = [places[row].pop() if places[row] else -1 for row in rows_of(first)]
    left = [place for rest in places.values() for place in rest]
    return second.subset(np.array([left.pop() if place < 0 else place for place in order]))


def rows_of(rows: EmbeddingSet) -> Iterator[tuple[Any, ...]]:
    """Every row by its bits, class, user and split."""
    classes, users = rows.meta.get("class_names") or (), rows.meta.get("user_names")
    named = users_of(rows)
    for place, row in enumerate(np.asarray(rows.embeddings)):
        label, user = int(rows.labels[place]), int(named[place])
        yield (
            row.tobytes(),
            classes[label] if classes and label >= 0 else label,
            users[user] if users else user,
            int(rows.split[place]),
        )


def with_users(rows: EmbeddingSet) -> EmbeddingSet:
    """The rows, all of one user where the set names none."""
    named = columns(rows) | {"users": users_of(rows)}
    return EmbeddingSet(embeddings=rows.embeddings, **named, meta=rows.meta)


def users_of(rows: EmbeddingSet) -> np.ndarray:
    """(N,) whose rows they are; of a set without users one user's."""
    return np.zeros(len(rows), np.int64) if rows.users is None else rows.users


def differing(first: Any, second: Any, at: str = "") -> list[str]:
    """Places in which two reports differ, those of the noised sum left out."""
    if at in OF_THE_SUM:
        return []
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        names = sorted(first.keys() | second.keys())
        return [
            place
            for name in names
            for place in differing(first.get(name), second.get(name), f"{at}.{name}".strip("."))
        ]
    return [] if first == second else [at]
