"""UCI Adult: its rows, the comparison of both perturbations, and what the command writes."""

import gzip
import json

import numpy as np
import pytest
import torch

from tests.benchmarks import adult
from train_distributed.research.rivals.admm import calibration

HEADER = "age, workclass, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week, Salary"
FILES = {"curves.csv", "comparison.txt", "report.json"}


def write(path, *rows, header=HEADER):
    with gzip.open(path, "wt") as file:
        file.write("\n".join([header, *rows, "", ""]))
    return path


def test_adult_rows_are_scaled_one_hot_and_of_norm_one(tmp_path):
    path = write(
        tmp_path / "adult.data.gz",
        "50, State-gov, 750000, 16, 0, 0, 50, <=50K",
        "25, ?, 0, 1, 100000, 0, 100, >50K",
    )
    x, labels = adult.read_adult(path)
    assert labels.tolist() == [0, 1]
    rows = [[1, 0.5, 0, 1, 0.5, 1, 0, 0, 0.5], [1, 0.25, 1, 0, 0, 0, 1, 0, 1]]  # "?" is first
    expected = torch.tensor(rows, dtype=torch.float64)
    assert torch.allclose(x, expected / expected.norm(dim=1, keepdim=True))
    wrong = write(tmp_path / "label.gz", "50, State-gov, 750000, 16, 0, 0, 50, 60K")
    with pytest.raises(ValueError, match="Salary must be one of <=50K, >50K"):
        adult.read_adult(wrong)
    narrow = write(tmp_path / "columns.gz", "50, <=50K", header="age, Salary")
    with pytest.raises(ValueError, match="column must be one of age, Salary, got"):
        adult.read_adult(narrow)


def test_the_real_file(reference_data):
    x, labels = adult.read_adult(reference_data / "data" / "adult.data.gz")
    assert x.shape == (32_561, 109)
    assert int(labels.sum()) == 7841


def test_the_command_writes_curves_and_report(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "ALPHAS", (0.01, 0.1, 0.5, 1.0))
    monkeypatch.setattr(adult, "PUBLISHED", dict.fromkeys(("none", "dvp", "pvp"), (0.1, 1.0)))
    draw, rows = np.random.default_rng(0), []
    for _ in range(120):
        age, hours = draw.integers(20, 70), draw.integers(10, 80)
        label = ">50K" if age + hours > 90 else "<=50K"
        rows.append(f"{age}, {draw.choice(['a', 'b'])}, 1000, 9, 0, 0, {hours}, {label}")
    small = {"nodes": 3, "seeds": 2, "eta_dual": 0.5, "eta_primal": 0.5}
    out = tmp_path / "out"
    command = adult.Figures(data=write(tmp_path / "a.gz", *rows), output=out, **small)
    command.run()
    assert {path.name for path in out.iterdir()} == FILES
    report = json.loads((out / "report.json").read_text())
    assert len(report["comparison"]) == 4 * 2 * 2
    charged = 10 * calibration.charged(1.0, adult.TOLERANCE)
    assert report["composed_over_all_iterations"]["0.1"]["pure"] == pytest.approx(charged)
    assert str(tmp_path) not in json.dumps(report)
    assert len((out / "curves.csv").read_text().splitlines()) == 1 + 100 * (1 + 2 * 4)
    with pytest.raises(FileExistsError, match="must not exist"):
        command.run()


def test_the_comparison_names_the_better_method_only_where_seeds_agree():
    clear, vague = np.full((100, 4), 0.3), np.tile([0.1, 0.5, 0.1, 0.5], (100, 1))
    other = np.full((100, 4), 0.2) + 1e-3 * np.arange(4)
    curves = {}
    for alpha in adult.CURVES:
        curves["dvp", alpha] = {"loss": clear, "error": vague}
        curves["pvp", alpha] = {"loss": other, "error": vague.mean() + 0 * vague}
    rows = adult.compare(curves)
    assert {row["better"] for row in rows if row["measure"] == "loss"} == {"pvp"}
    assert {row["better"] for row in rows if row["measure"] == "error"} == {"neither"}
    text = adult.state_comparison(rows)
    assert (text.count("PVP is better\n"), text.count("no difference\n")) == (8, 8)
