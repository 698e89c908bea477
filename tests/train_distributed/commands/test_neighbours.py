"""Every byte that commands write about two sets that differ in one record.

What may differ is listed, with the reason why it tells nothing that the promise does not cover;
docs/promises.md has the same list.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.hold_out import random_keys, with_held_out
from tests.embedding_sets import clusters
from train_distributed.one_shot.model import Release

METHODS = ("discriminant", "softmax", "svm", "logistic")
SALTED = "a hash over a secret salt of the ledger"
SUM = "read off the noised sum"
CLEAR = "accuracy on test rows, which no promise covers, of the released model"
PUBLIC = {
    **dict.fromkeys(("ledger.entry", "ledger.head"), SALTED),
    **dict.fromkeys(("class_prior", "temperature", "common_share"), SUM),
    **dict.fromkeys(("test_accuracy", "test_accuracy_per_class", "test_metrics"), CLEAR),
    # of evaluation.json
    **dict.fromkeys(("accuracy", "balanced_accuracy", "majority_baseline"), SUM),
    **dict.fromkeys(("majority_class", "warnings", "recall", "confusion", "bins"), SUM),
    "expected_calibration_error": SUM,
    "model": "SHA-256 of the released model",
}
OF_THE_SUM = {"model.safetensors", "privacy.png", "confusion.png"}  # and pictures of these numbers


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two sets that differ in one row and its label, in folders that have the same names."""
    first = clusters(180, 3, 5, test=30, users=8)
    x, labels = np.array(first.embeddings), first.labels.copy()
    public = EmbeddingSet(embeddings=x[::-1] + 0.01, labels=first.labels)
    x[0], labels[0] = 1e6, 2  # of the training rows, or of those that are held out
    pairs, keys = (
        {"first": first, "second": replace(first, embeddings=x, labels=labels)},
        random_keys(180),
    )
    for name, rows in pairs.items():
        (tmp_path / name).mkdir()
        with_held_out(rows, 0.2, keys=keys).save(tmp_path / name / "private")
        public.save(tmp_path / name / "public")
    return tmp_path / "first", tmp_path / "second"


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word of a JSON object by its place."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{at}.{name}".strip("."))
    else:
        yield at, value


def unlisted(first: Path, second: Path) -> list[str]:
    """Places in which two directories differ that are not listed as public."""
    names = [{path.name for path in folder.iterdir()} for folder in (first, second)]
    assert names[0] == names[1]
    found = []
    for name in names[0] - OF_THE_SUM:
        texts = [(folder / name).read_text() for folder in (first, second)]
        told = [dict(leaves(json.loads(text))) for text in texts]
        places = told[0].keys() | told[1].keys()
        differ = [at for at in places if told[0].get(at) != told[1].get(at)]
        found += [at for at in differ if not {at, at.partition(".")[0]} & PUBLIC.keys()]
    return found


@pytest.mark.parametrize("method", METHODS)
def test_nothing_but_the_sum_and_what_is_listed_differs(
    say, monkeypatch, no_pictures, pair: tuple[Path, Path], method: str
) -> None:
    promise = "--embeddings private --epsilon 0.5 --delta 1e-5"
    for folder in pair:
        monkeypatch.chdir(folder)
        say.done(f"run {promise} --public public --method {method} --out model")
        for overlap in ("refuse", "add"):
            say.done(f"evaluate {promise} --model model --overlap {overlap} --out {overlap}")
    for name in ("model", "refuse", "add"):
        assert unlisted(*(folder / name for folder in pair)) == []


@pytest.mark.parametrize("rows", [1, 50, 1023, 1024, 1025])
def test_scores_stay_the_same_bits_wherever_a_row_is(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    transform = PublicTransform.fit(torch.randn(300, 96, generator=draw), components=33)
    release = Release(torch.randn(34, 7, generator=draw).double(), transform, tuple("abcdefg"))
    x = torch.randn(rows + 3, 96, generator=draw)
    order = torch.randperm(len(x), generator=draw)
    for function in (release.scores, release.predict_proba):
        made = function(x)
        assert torch.equal(function(x[order]), made[order])
        assert torch.equal(function(x[3:]), made[3:])
