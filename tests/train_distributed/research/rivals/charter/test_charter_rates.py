"""Charter's experiment and the gradient descent it is compared with."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from tests.benchmarks import charter_rates
from train_distributed import accounting
from train_distributed.research.rivals.charter.algorithm import Distance


def descend(rows, *, epsilon, seed=0, rounds=40):
    return charter_rates.private_gradient_descent(
        [(rows, torch.zeros(len(rows)))],
        Distance(rows.shape[1]),
        epsilon=epsilon,
        delta=1e-5,
        rounds=rounds,
        gradient_clip=2.0,
        step=0.5,
        half_width=1.0,
        generator=torch.Generator().manual_seed(seed),
    )[0]


def test_descent_without_noise_reaches_the_mean():
    rows = 0.3 + 0.1 * torch.randn(500, 3, generator=torch.Generator().manual_seed(1)).double()
    assert torch.allclose(descend(rows, epsilon=math.inf), rows.mean(0), atol=0.01)


def test_descent_adds_the_noise_of_its_accounting():
    rows = torch.zeros(100, 3, dtype=torch.float64)
    drawn = torch.stack([descend(rows, epsilon=1.0, seed=seed, rounds=1) for seed in range(300)])
    # One round from 0, step 1/2, clamped never: noise 2 G/N σ(1, 1e-5) times the step.
    expected = 0.5 * 2 * 2.0 / 100 * accounting.noise_multiplier(1.0, 1e-5)
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


def test_cut_fit_reads_decades_and_dimensions():
    counts = [
        {"dimension": d, "digits": n, "cuts": 3 * d * n + 7} for d in (2, 5, 9) for n in range(1, 5)
    ]
    fitted = charter_rates.fit_cuts(pd.DataFrame(counts))
    assert fitted["per_decade"][5] == pytest.approx(15)
    assert fitted["per_decade_and_dimension"] == pytest.approx(3)


def test_max_affine_has_least_value_zero():
    value, gradient, _ = charter_rates.max_affine(4, seed=3)
    draw = np.random.default_rng(0)
    for _ in range(50):
        x, other = draw.normal(size=(2, 4))
        assert value(x) >= 0
        assert value(other) >= value(x) + gradient(x) @ (other - x) - 1e-12


def test_a_run_measures_the_payload_of_its_formula():
    small = charter_rates.Slopes(rows=600, rounds=6, clients=2)
    row = small.measure("bits", 5, seed=0)
    assert row["charter_bits"] == row["charter_bits_by_formula"] == 6 * 5 * 5 + 6 * 5
    assert row["charter_secure_sum_bits"] == 64 * (6 * 5 + 6)


def test_runs_are_summarised_and_drawn(tmp_path):
    draw = np.random.default_rng(0)
    risks = []
    for name, values in charter_rates.SWEEPS.items():
        for value in values:
            for seed in range(3):
                at = {"clients": 8, "rows": 3000, "epsilon": 0.5, "rounds": 30, "bits": None}
                row = {"sweep": name, "seed": seed, **at, name: value}
                for method in ("charter", "charter_secure_sum", "dp_sgd", "not_private"):
                    row |= {method: draw.uniform(1e-3, 1e-2), f"{method}_bits": 100}
                    row[f"{method}_bits_by_formula"] = 100
                risks.append(row)
    counts = [{"dimension": 2, "digits": n, "cuts": 9 * n} for n in (1, 2)]
    found, cuts = pd.DataFrame(risks).astype({"bits": "Int64"}), pd.DataFrame(counts)
    found.loc[0, "charter_secure_sum_bits"] = 99
    report = charter_rates.summarise(found)
    assert set(report["slopes_and_their_errors"]) == {"clients", "rows", "epsilon"}
    equal = {name: each["exactly_as_the_formula"] for name, each in report["payload"].items()}
    assert equal == {"charter": len(risks), "charter_secure_sum": len(risks) - 1}
    charter_rates.draw(tmp_path / "charter.png", found, cuts)
    assert (tmp_path / "charter.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_the_command_writes_its_files(tmp_path):
    charter_rates.Slopes(output=tmp_path / "out", seeds=2).run()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        "risk.csv",
        "cuts.csv",
        "report.json",
        "amplification.json",
        "charter.png",
    }


def test_our_account_of_a_cell_wins_over_the_general_theorem(monkeypatch):
    monkeypatch.setattr(charter_rates, "ORDERS", (8, 16, 32))
    at = {"clients": 8, "rows": 300, "epsilon": 0.5, "rounds": 2}
    cell = charter_rates.compare_accounts(charter_rates.Slopes().plan(at))
    assert cell["multiplier"] < cell["multiplier_without_amplification"]
    assert cell["epsilon_by_our_account"] <= 0.5 < cell["epsilon_by_dp_accounting"]
