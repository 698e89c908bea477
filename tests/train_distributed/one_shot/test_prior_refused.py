"""Priors that are none are refused by name, by every method and from a file."""

import json
from pathlib import Path

import pytest
import torch

from train_distributed.one_shot.class_prior import checked_prior, read_shares, shares_of

NAMES = ("cat", "dog", "owl")
WITH_PRIOR = ("discriminant", "softmax", "logistic")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[0.2, 0.3, 0.5]", "JSON object"),
        ('{"cat": 0.5, "dog": 0.5}', "'owl'"),
        ('{"cat": 0.2, "dog": 0.3, "owl": 0.4, "emu": 0.1}', "'emu'"),
        ('{"cat": 0.2, "cat": 0.3, "dog": 0.3, "owl": 0.2}', "'cat' twice"),
        ('{"0": 0.2, "1": 0.3, "owl": 0.5}', "'cat'"),
        ('{"cat": 0.2, "dog": 0.3, "owl": NaN}', "got nan"),
        ('{"cat": 0.2, "dog": 0.3, "owl": {"a": 1}}', "shares > 0"),
        ('{"cat": 1, "dog": 1, "owl": 1}', "sum 1, got 3"),
        ("[" * 100_000, ""),
    ],
)
def test_files_that_are_no_prior_are_named(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "prior.json").write_text(text)
    with pytest.raises(ValueError, match=r"prior must be .*prior\.json") as caught:
        read_shares(tmp_path / "prior.json", NAMES)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match=r"prior must be .*missing\.json"):
        read_shares(tmp_path / "missing.json", NAMES)


def test_a_file_may_name_classes_or_number_them(tmp_path: Path) -> None:
    path = tmp_path / "prior.json"
    path.write_text(json.dumps({"owl": 0.5, "cat": 0.2, "dog": 0.3}))
    assert read_shares(path, NAMES) == (0.2, 0.3, 0.5)
    path.write_text(json.dumps({"2": 0.5, "0": 0.2, "1": 0.3}))
    assert read_shares(path, NAMES) == (0.2, 0.3, 0.5)
    assert checked_prior([0.5, 0.5], 2) == (0.5, 0.5)
    exact = shares_of((0.5, 0.5000001), torch.ones(2).double())
    assert float(exact.sum()) == 1.0
