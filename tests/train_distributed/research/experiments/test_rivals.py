"""All learners side by side on small clusters."""

import csv
import math

import numpy as np
import pytest
import torch

from embed import EmbeddingSet
from train_distributed import partition
from train_distributed.research.admm import calibration
from train_distributed.research.baselines import multi_round
from train_distributed.research.experiments import rivals


def clusters(rows, seed, *, test=0):
    """Three well separated classes in R^8; the last rows test."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(3, size=rows)
    centres = 4 * np.random.default_rng(99).normal(size=(3, 8))
    x = (centres[labels] + draw.normal(size=(rows, 8))).astype(np.float32)
    split = (np.arange(rows) >= rows - test).astype(np.uint8)
    return EmbeddingSet(embeddings=x, labels=labels, split=split)


@pytest.fixture
def comparison(tmp_path):
    clusters(2600, 0, test=200).save(tmp_path / "private")
    clusters(500, 1).save(tmp_path / "public")
    return rivals.Comparison(
        embeddings=tmp_path / "private",
        public=tmp_path / "public",
        output=tmp_path / "out",
        components=(4,),
        users=(8,),
        epsilon=10.0,
        seeds=2,
    )


def test_every_learner_appears_with_its_cost(comparison, capsys):
    comparison.run()
    assert (comparison.output / "table.txt").read_text() == capsys.readouterr().out
    with (comparison.output / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["learner"] for row in rows} == set(rivals.RIVALS)
    assert len(rows) == 2 * len(rivals.RIVALS)
    accuracy = {row["learner"]: float(row["accuracy"]) for row in rows}
    spent = {row["learner"]: float(row["epsilon"]) for row in rows}
    for name in ("class-sums", "ADMM, no noise", "Charter, no noise"):
        assert accuracy[name] > 0.9
    for name, epsilon in spent.items():
        if "no noise" in name:
            assert math.isinf(epsilon)
        else:
            assert 9.9 < epsilon <= 10
    assert "/" not in (comparison.output / "report.json").read_text().split('"command"')[0]
    with pytest.raises(FileExistsError, match="must not exist"):
        comparison.run()


def test_alpha_spends_the_whole_budget():
    alpha = calibration.largest_alpha(1.2, 1e-5, 50, 1e-9)
    assert calibration.compose([alpha] * 50, 1e-5).epsilon <= 1.2
    assert calibration.compose([1.01 * alpha] * 50, 1e-5).epsilon > 1.2


def test_charter_makes_no_more_cuts_than_its_smallest_client_has_rows_for():
    x, y = torch.ones(40, 20, dtype=torch.float64), torch.arange(40) % 2
    held = multi_round.Rows(x, y, partition.split(y, 4), 2, 5.0)  # ten rows each
    wanted = multi_round.CharterOptions(rounds_per_feature=0.5)
    assert rivals._affordable(wanted, held) == multi_round.CharterOptions(cut_rounds=3)
    few = rivals._affordable(multi_round.CharterOptions(cut_rounds=2), held)
    assert isinstance(few, multi_round.CharterOptions)
    assert few.cut_rounds == 2
    other = multi_round.AdmmOptions()
    assert rivals._affordable(other, held) is other


def test_a_missing_set_is_named(tmp_path):
    missing = rivals.Comparison(embeddings=tmp_path / "nowhere", public=tmp_path)
    with pytest.raises(ValueError, match="embeddings must be an existing directory"):
        missing.run()
