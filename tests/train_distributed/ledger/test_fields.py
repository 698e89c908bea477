"""What an entry says of rows tells other rows, splits, users and images apart."""

from dataclasses import replace

import numpy as np

from embed import EmbeddingSet
from train_distributed.ledger.fields import row_fields


def test_rows_are_known_by_their_values_their_split_and_their_images() -> None:
    x = np.arange(12.0).reshape(6, 2)
    split = np.array([0, 0, 0, 1, 2, 2])
    rows = EmbeddingSet(
        embeddings=x, labels=np.zeros(6, int), split=split, meta={"data_hash": "i" * 64}
    )
    train, held = (row_fields(rows, part) for part in ("train", "evaluation"))
    assert held == train | {"part": "evaluation"}
    assert train["images"] == "i" * 64
    moved = row_fields(replace(rows, split=split[::-1].copy()), "train")
    assert moved == train | {"split": moved["split"]}
    assert moved["split"] != train["split"]
    assert train["users"] == ""
    owned = row_fields(replace(rows, users=np.arange(6)), "train")
    assert owned["users"] not in ("", row_fields(replace(rows, users=np.ones(6, int)), "")["users"])
    assert row_fields(replace(rows, embeddings=x + 1, meta={}), "train")["data"] != train["data"]
