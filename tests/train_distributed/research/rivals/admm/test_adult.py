"""UCI Adult, the fitted trade-off and the figures' command."""

import gzip
import json
import math

import numpy as np
import pytest
import torch

from tests.benchmarks import adult
from train_distributed.research.rivals.admm import calibration

HEADER = "age, workclass, fnlwgt, education-num, capital-gain, capital-loss, hours-per-week, Salary"


def write(path, *rows):
    with gzip.open(path, "wt") as file:
        file.write("\n".join([HEADER, *rows, "", ""]))
    return path


def test_adult_rows_are_scaled_one_hot_and_of_norm_one(tmp_path):
    path = write(
        tmp_path / "adult.data.gz",
        "50, State-gov, 750000, 16, 0, 0, 50, <=50K",
        "25, ?, 0, 1, 100000, 0, 100, >50K",
    )
    x, labels = adult.read_adult(path)
    assert labels.tolist() == [0, 1]
    first = torch.tensor([1, 0.5, 0, 1, 0.5, 1, 0, 0, 0.5], dtype=torch.float64)  # "?" is first
    assert torch.allclose(x[0], first / first.norm())
    second = torch.tensor([1, 0.25, 1, 0, 0, 0, 1, 0, 1], dtype=torch.float64)
    assert torch.allclose(x[1], second / second.norm())


def test_bad_adult_files_are_named(tmp_path):
    wrong = write(tmp_path / "label.gz", "50, State-gov, 750000, 16, 0, 0, 50, 60K")
    with pytest.raises(ValueError, match="Salary must be one of <=50K, >50K"):
        adult.read_adult(wrong)
    with gzip.open(tmp_path / "columns.gz", "wt") as file:
        file.write("age, Salary\n50, <=50K\n")
    with pytest.raises(ValueError, match="column must be one of age, Salary, got"):
        adult.read_adult(tmp_path / "columns.gz")


def test_the_real_file(reference_data):
    x, labels = adult.read_adult(reference_data / "data" / "adult.data.gz")
    assert x.shape == (32_561, 109)
    assert torch.allclose(x.norm(dim=1), torch.ones(32_561, dtype=torch.float64))
    assert int(labels.sum()) == 7841


def test_the_fit_recovers_a_curve():
    alphas = np.geomspace(0.01, 1, 12)
    found = adult.LossCurve.fit(alphas, adult.LossCurve(0.2, 25.0, 0.4)(alphas), 0.4)
    assert found.amplitude == pytest.approx(0.2, rel=1e-5)
    assert found.rate == pytest.approx(25, rel=1e-5)


@pytest.mark.parametrize("curve", [(0.2, 25.0, 0.4), (20.0, 20.0, 0.4), (1e-6, 1.0, 0.4)])
def test_the_best_alpha_beats_a_fine_grid(curve):
    fitted = adult.LossCurve(*curve)

    def utility(alpha):
        return adult.privacy_utility(alpha) - fitted(alpha)

    best = fitted.best_alpha(0.01, 1.0)
    assert 0.01 * (1 - 1e-9) <= best <= 1 + 1e-9
    assert utility(best) >= utility(np.geomspace(0.01, 1, 20_001)).max() - 1e-6


def test_privacy_is_worth_what_the_paper_says():
    # .02 ln(6 / (9 · .1 + .01)) = .02 ln(6.5934)
    assert adult.privacy_utility(0.1) == pytest.approx(0.02 * math.log(6 / 0.91))


def random_adult(path, rows=120):
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(rows):
        age, hours = draw.integers(20, 70), draw.integers(10, 80)
        label = ">50K" if age + hours > 90 else "<=50K"
        lines.append(f"{age}, {draw.choice(['a', 'b'])}, 1000, 9, 0, 0, {hours}, {label}")
    return write(path, *lines)


def test_the_command_writes_curves_report_and_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(adult, "ALPHAS", (0.01, 0.1, 0.5, 1.0))
    monkeypatch.setattr(adult, "PUBLISHED", dict.fromkeys(("none", "dvp", "pvp"), (0.1, 1.0)))
    command = adult.Figures(
        data=random_adult(tmp_path / "adult.data.gz"),
        output=tmp_path / "out",
        nodes=3,
        seeds=2,
        eta_dual=0.5,
        eta_primal=0.5,
    )
    command.run()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {
        "curves.csv",
        "comparison.txt",
        "report.json",
        "convergence.png",
        "tradeoff.png",
        "final.png",
    }
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert len(report["comparison"]) == 4 * 2 * 2
    assert report["composed_over_all_iterations"]["0.1"]["pure"] == pytest.approx(
        10 * calibration.charged(1.0, adult.TOLERANCE), rel=1e-12
    )
    assert str(tmp_path) not in json.dumps(report)
    text = (tmp_path / "out" / "comparison.txt").read_text()
    assert text.count(" is better\n") + text.count("no difference") == 16
    lines = (tmp_path / "out" / "curves.csv").read_text().splitlines()
    assert len(lines) == 1 + 100 * (1 + 2 * 4)
    with pytest.raises(FileExistsError, match="must not exist"):
        command.run()


def test_too_few_iterations_are_named(tmp_path):
    command = adult.Figures(data=tmp_path, output=tmp_path / "out", iterations=5)
    with pytest.raises(ValueError, match="iterations must be >= 100"):
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
