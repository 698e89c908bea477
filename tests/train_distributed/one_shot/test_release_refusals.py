"""What a release refuses: settings, rows and labels."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.request import FaultInjection
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
    ({"noise": "laplace"}, "noise must be one of discrete, float, got 'laplace'"),
    ({"generator": torch.Generator()}, "generator must be None for noise 'discrete'"),
    ({"num_classes": 5}, "num_classes must be 3, the set's class names, got 5"),
    ({"min_survivors": 0}, r"min_survivors must be in \[1, 6\]"),
    ({"min_survivors": 3}, "one certainly honest user, got 0"),
    ({"faults": FaultInjection([6])}, r"dropped must hold users in \[0, 6\), got 6"),
    ({"method": "softmax", "l2_reg": 0.0}, "l2_reg must be finite and > 0, got 0.0"),
    ({"method": "softmax", "l2_reg": -1.0}, "l2_reg must be finite and > 0, got -1.0"),
    ({"method": "softmax", "bound": "paper"}, "radius must be given for bound='paper'"),
    ({"method": "softmax", "solver": "newton"}, "solver must be one of exact, sgd, got 'newton'"),
    ({"method": "softmax", "bound": "loose"}, "bound must be 'tight' or 'paper', got 'loose'"),
    ({"method": "softmax", "epochs": 0}, "epochs must be >= 1, got 0"),
    ({"method": "softmax", "batch_size": -1}, "batch_size must be >= 1, got -1"),
    ({"l2_reg": 1.0}, "options must fit method 'discriminant'"),
    ({"alpha": 0.0}, "alpha must be finite and > 0, got 0.0"),
    ({"alpha": math.nan}, "alpha must be finite and > 0, got nan"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_settings(change: dict, message: str):
    arguments = {
        "method": "discriminant",
        "privacy": Privacy(1.0, 1e-5),
        "transform": TRANSFORM,
        "partition": split(torch.from_numpy(ROWS.labels), 6),
    } | change
    with pytest.raises(ValueError, match=message):
        release(ROWS, **arguments)


def test_a_single_class_is_none():
    with pytest.raises(ValueError, match="num_classes must be >= 2, got 1"):
        build_method("discriminant", TRANSFORM, 1, {})


def test_bad_rows_and_labels():
    good = ROWS
    broken = good.embeddings.copy()
    broken[4, 2] = np.nan
    good = replace(good, users=np.zeros(len(good), np.int64))
    nan = replace(good, embeddings=broken)
    with pytest.raises(ValueError, match="must be finite, got nan"):
        release(nan, "discriminant", Privacy(1.0, 1e-5), transform=TRANSFORM)
    unnamed = replace(good, meta={})
    with pytest.raises(ValueError, match="num_classes must be given"):
        release(unnamed, "discriminant", Privacy(1.0, 1e-5), transform=TRANSFORM)
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\), got 2"):
        release(unnamed, "svm", Privacy(1.0, 1e-5), transform=TRANSFORM, num_classes=2)
    only_test = EmbeddingSet(
        embeddings=good.embeddings, labels=good.labels, split=np.ones(len(good), np.uint8)
    )
    with pytest.raises(ValueError, match="must hold training rows"):
        release(only_test, "svm", Privacy(1.0, 1e-5), num_classes=3)
