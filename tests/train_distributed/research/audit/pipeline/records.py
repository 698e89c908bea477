"""Pictures as their owners hold them, replacements of one, and what a comparison of rows finds."""

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from embed import EmbeddingSet
from embed.store import columns
from pretrain.datasets import ImageSet

LARGE = 600  # pixels of a side of the picture whose file is the largest
OF_THE_SUM = ("class_prior",)  # of a report: read off the noised sum, which the promise covers


@dataclass(frozen=True)
class Record:
    """One picture; `name` and `data` are of its file."""

    name: str
    label: str
    user: str
    data: bytes


def records_of(images: ImageSet, count: int) -> list[Record]:
    """At most so many pictures of a labelled set, as PNG files; without users, of three users."""
    images.need_labels()
    if len(images) < 12:
        raise ValueError(f"pictures must be 12 or more, got {len(images)} in {images.name}")
    rows = np.unique(np.linspace(0, len(images) - 1, count).astype(np.int64))
    return [
        Record(
            name=f"{place:04d}",
            label=images.class_names[images.labels[row]],
            user="abc"[place % 3] if images.users is None else _user(images, int(row)),
            data=as_png(images.images(slice(row, row + 1))[0].transpose(1, 2, 0)),
        )
        for place, row in enumerate(rows.tolist())
    ]


def replacements(
    records: Sequence[Record], place: int, classes: Sequence[str]
) -> Iterator[tuple[str, Record]]:
    """Kinds of records that may replace one: its user stays, as numbers of rows are public."""
    old, draw = records[place], np.random.default_rng(0)
    side = Image.open(io.BytesIO(old.data)).size
    noise = draw.integers(0, 256, (side[1], side[0], 3), dtype=np.uint8)
    large = draw.integers(0, 256, (LARGE, LARGE, 3), dtype=np.uint8)
    tall = np.asarray(Image.open(io.BytesIO(old.data)).convert("RGB").resize((side[0] * 2, 90)))
    yield "another picture", replace(old, data=as_png(noise))
    other = classes[(classes.index(old.label) + 1) % len(classes)]
    yield "another class", replace(old, label=other)
    yield "another name", replace(old, name="zzzz")
    yield "another size", replace(old, data=as_png(tall))
    yield "unreadable", replace(old, data=b"no picture")
    yield "a duplicate", replace(old, data=records[place - 1].data)
    yield "all black", replace(old, data=as_png(np.zeros_like(noise)))
    yield "largest file", replace(old, data=as_png(large))


def as_png(pixels: np.ndarray) -> bytes:
    """The file of an (h, w, 3) uint8 picture."""
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def _user(images: ImageSet, row: int) -> str:
    assert images.users is not None
    user = int(images.users[row])
    return images.user_names[user] if images.user_names else str(user)


def aligned(first: EmbeddingSet, second: EmbeddingSet) -> EmbeddingSet:
    """The second set with every row where the first has it, for a comparison under one draw."""
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
