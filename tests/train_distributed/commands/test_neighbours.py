"""Every byte that commands write about two sets that differ in one record.

What may differ is listed, with the reason why it tells nothing that the promise does not cover;
docs/promises.md has the same list.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embed import EmbeddingSet, PublicTransform
from embed.hold_out import random_keys, with_held_out
from train_distributed.one_shot.model import Release

METHODS = ("discriminant", "softmax", "svm", "logistic")
SALTED = "a hash over a secret salt of the ledger"
SUM = "read off the noised sum"
CLEAR = "accuracy on test rows, which no promise covers, of the released model"
PUBLIC = {
    "ledger.entry": SALTED,
    "ledger.head": SALTED,
    "class_prior": SUM,
    "temperature": SUM,
    "common_share": SUM,
    "test_accuracy": CLEAR,
    "test_accuracy_per_class": CLEAR,
    "test_metrics": CLEAR,
    # of evaluation.json
    "accuracy": SUM,
    "balanced_accuracy": SUM,
    "majority_baseline": SUM,
    "majority_class": SUM,
    "warnings": SUM,
    "recall": SUM,
    "confusion": SUM,
    "bins": SUM,
    "expected_calibration_error": SUM,
    "model": "SHA-256 of the released model",
}
OF_THE_SUM = {"model.safetensors", "privacy.png", "confusion.png"}  # and pictures of these numbers


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two sets that differ in one row and its label, in folders that have the same names."""
    draw = np.random.default_rng(0)
    labels = np.arange(180) % 3
    x = (2 * np.eye(3, 5)[labels] + 0.3 * draw.standard_normal((180, 5))).astype(np.float32)
    split = np.repeat([0, 1], [150, 30]).astype(np.uint8)
    public = EmbeddingSet(embeddings=x[::-1] + 0.01, labels=labels)
    keys, made = random_keys(180), []
    for name in ("first", "second"):
        folder = tmp_path / name
        meta = {"class_names": ["a", "b", "c"]}
        users = np.arange(180) % 8
        rows = EmbeddingSet(embeddings=x, labels=labels, users=users, split=split, meta=meta)
        folder.mkdir()
        with_held_out(rows, 0.2, keys=keys).save(folder / "private")
        public.save(folder / "public")
        made.append(folder)
        x, labels = x.copy(), labels.copy()
        x[0], labels[0] = 1e6, 2  # of the training rows, or of those that are held out
    return made[0], made[1]


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
    say: Callable[..., tuple[int, str, str]],
    monkeypatch: pytest.MonkeyPatch,
    no_pictures: None,
    pair: tuple[Path, Path],
    method: str,
) -> None:
    for folder in pair:
        monkeypatch.chdir(folder)
        promise = ["--epsilon", "0.5", "--delta", "1e-5"]
        given = ["--embeddings", "private", "--public", "public", "--method", method]
        code, _, error = say("run", *given, *promise, "--out", "model")
        assert code == 0, error
        given = ["--model", "model", "--embeddings", "private"]
        for overlap in ("refuse", "add"):
            out = ["--overlap", overlap, "--out", f"evaluated {overlap}"]
            code, _, error = say("evaluate", *given, *promise, *out)
            assert code == 0, error
    for name in ("model", "evaluated refuse", "evaluated add"):
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
