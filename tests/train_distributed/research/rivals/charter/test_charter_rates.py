"""Charter's experiment: the descent it is compared with, its fits, and what the command writes."""

import math

import pandas as pd
import pytest
import torch

from tests.benchmarks import charter_rates
from tests.benchmarks.charter_rates import Slopes, private_gradient_descent
from train_distributed import accounting
from train_distributed.research.rivals.charter.algorithm import Distance

FILES = {"risk.csv", "report.json"}


def descend(rows, epsilon, seed=0, rounds=40):
    data, draw = [(rows, torch.zeros(len(rows)))], torch.Generator().manual_seed(seed)
    return private_gradient_descent(data, Distance(rows.shape[1]), epsilon, 1e-5, rounds, draw)[0]


def test_descent_finds_the_mean_and_adds_the_noise_of_its_accounting():
    rows = 0.3 + 0.1 * torch.randn(500, 3, generator=torch.Generator().manual_seed(1)).double()
    assert torch.allclose(descend(rows, math.inf), rows.mean(0), atol=0.01)
    still = torch.zeros(100, 3, dtype=torch.float64)
    drawn = torch.stack([descend(still, 1.0, seed, rounds=1) for seed in range(300)])
    # One round from 0, step 1/2, clamped never: noise 2 G/N σ(1, 1e-5) times the step.
    expected = 0.5 * 2 * charter_rates.CLIP / 100 * accounting.noise_multiplier(1.0, 1e-5)
    assert drawn.std() == pytest.approx(expected, rel=0.1)


def test_slopes_are_those_of_a_power_law():
    rows = pd.DataFrame(
        [(seed, n) for n in (100, 200, 400) for seed in range(2)], columns=["seed", "rows"]
    ).assign(sweep="rows", dp_sgd=1.0)
    rows["charter"], rows["charter_secure_sum"] = rows["rows"] ** -1.5, 2 / rows["rows"]
    found = charter_rates.slope(rows, "rows")
    assert found["charter"] == pytest.approx([-1.5, 0])
    assert found["charter_secure_sum"] == pytest.approx([-1, 0])
    assert found["dp_sgd"] == pytest.approx([0, 0], abs=1e-12)


@pytest.mark.slow
def test_the_command_writes_its_files(tmp_path):
    Slopes(output=tmp_path / "out", seeds=2).run()
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
