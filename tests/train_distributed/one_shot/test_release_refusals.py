"""What a release refuses: settings, rows and labels, streams that break their word."""

import math
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.release import Rehearsal
from train_distributed.one_shot.users import Chunk
from train_distributed.partition import split

ROWS = EmbeddingSet(
    embeddings=np.tile(np.eye(6, dtype=np.float32), (10, 1)),
    labels=np.arange(60) % 3,
    split=np.zeros(60, np.uint8),
    meta={"class_names": ["a", "b", "c"]},
)
TRANSFORM = PublicTransform.identity(6)

BAD = [
    ({"method": "nearest"}, "method must be one of .*, got 'nearest'"),
    ({"noise": "laplace"}, "noise must be 'discrete' or 'float', got 'laplace'"),
    ({"generator": torch.Generator()}, "generator must be None for noise 'discrete'"),
    ({"num_classes": 5}, "num_classes must be 3, the set's class names, got 5"),
    ({"min_survivors": 0}, r"min_survivors must be in \[1, 6\]"),
    ({"min_survivors": 3}, "one certainly honest user, got 0"),
    ({"rehearsal": Rehearsal([6])}, r"dropped must hold users in \[0, 6\), got 6"),
    ({"method": "softmax", "l2_reg": 0.0}, "l2_reg must be finite and > 0, got 0.0"),
    ({"method": "softmax", "l2_reg": -1.0}, "l2_reg must be finite and > 0, got -1.0"),
    ({"method": "softmax", "bound": "paper"}, "radius must be given for bound='paper'"),
    ({"method": "softmax", "solver": "newton"}, "solver must be 'exact' or 'sgd', got 'newton'"),
    ({"method": "softmax", "epochs": 0}, "epochs must be >= 1, got 0"),
    ({"method": "class-sums", "l2_reg": 1.0}, "options must fit method 'class-sums'"),
    ({"method": "least-squares", "ridge": -1.0}, "ridge must be finite and >= 0, got -1.0"),
    ({"method": "least-squares", "alpha": 0.0}, "alpha must be finite and > 0, got 0.0"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_settings(change: dict, message: str):
    arguments = {
        "method": "class-sums",
        "privacy": Privacy(1.0, 1e-5),
        "transform": TRANSFORM,
        "partition": split(torch.from_numpy(ROWS.labels), 6),
    } | change
    with pytest.raises(ValueError, match=message):
        release(ROWS, **arguments)


def test_bad_rows_and_labels():
    good = ROWS
    broken = good.embeddings.copy()
    broken[4, 2] = np.nan
    nan = EmbeddingSet(embeddings=broken, labels=good.labels, split=good.split, meta=good.meta)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        release(nan, "class-sums", Privacy(1.0, 1e-5), transform=TRANSFORM)
    unnamed = EmbeddingSet(embeddings=good.embeddings, labels=good.labels, split=good.split)
    with pytest.raises(ValueError, match="num_classes must be given"):
        release(unnamed, "class-sums", Privacy(1.0, 1e-5), transform=TRANSFORM)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 2"):
        release(unnamed, "svm", Privacy(1.0, 1e-5), transform=TRANSFORM, num_classes=2)
    only_test = EmbeddingSet(
        embeddings=good.embeddings, labels=good.labels, split=np.ones(len(good), np.uint8)
    )
    with pytest.raises(ValueError, match="must hold training rows"):
        release(only_test, "svm", Privacy(1.0, 1e-5), num_classes=3)


@dataclass(frozen=True)
class Stream:
    """Two users of two rows each that no transform has clipped."""

    rows: torch.Tensor  # (2, 2, 3)
    sizes: torch.Tensor = field(default_factory=lambda: torch.tensor([2, 1]))
    dim: int = 3

    def chunks(self):
        yield Chunk(torch.arange(2), self.rows, torch.zeros(2, 2, dtype=torch.int64), self.sizes)


@pytest.mark.parametrize("method", ["class-sums", "least-squares", "softmax"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, 1.0, 0.01], "norm <= clip_norm"),
        ([1.0, math.nan, 0.0], "finite rows|finite"),
        ([0.5, 1.0, 0.0], "rows must begin with the constant 1.0, got 0.5"),
    ],
)
def test_rows_that_stream_in_are_checked_too(method: str, row: list[float], message: str):
    """A stream that nobody clipped would void the sensitivity of sums without a word."""
    rows = torch.tensor([1.0, 0.6, 0.7]).expand(2, 2, 3).clone()
    promise = Privacy(5.0, 1e-5, 1.0)
    release(Stream(rows), method, promise, noise="float", num_classes=2)
    rows[1, 1] = torch.tensor([9.0, 9.0, 9.0])  # padding
    if method != "softmax":
        release(Stream(rows), method, promise, noise="float", num_classes=2)
    rows[1, 1] = torch.tensor([1.0, 0.6, 0.7])
    rows[1, 0] = torch.tensor(row)
    if method == "softmax" and row[0] == 0.5:
        return  # a trained head needs no constant
    with pytest.raises(ValueError, match=message):
        release(Stream(rows), method, promise, noise="float", num_classes=2)


@dataclass(frozen=True)
class Liar(Stream):
    """A stream whose users come twice, or with more rows than they said."""

    twice: bool = True

    def chunks(self):
        for chunk in super().chunks():
            yield chunk if self.twice else replace(chunk, counts=torch.tensor([2, 2]))
            yield chunk


@pytest.mark.parametrize(
    ("twice", "message"),
    [(True, "users must stream in once each"), (False, "as many rows as their sizes say")],
)
def test_users_come_once_with_the_rows_they_said(twice: bool, message: str):
    rows = torch.tensor([1.0, 0.6, 0.7]).expand(2, 2, 3).clone()
    promise = Privacy(5.0, 1e-5, 1.0)
    with pytest.raises(ValueError, match=message):
        release(Liar(rows, twice=twice), "class-sums", promise, noise="float", num_classes=2)
