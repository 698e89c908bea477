"""Lines that coincide are one; what was recorded is still read."""

import gzip
import json
from pathlib import Path

import pytest

from train_distributed.research.experiments.catalogue import tell
from train_distributed.research.experiments.figures import _panels, draw_frontier
from train_distributed.simulation.plan import Result


def cells(**accuracy: dict[str, float]) -> list[Result]:
    """Two ε and two seeds of every method, by scheme."""
    return [
        Result(label, label, scheme, epsilon, seed, value + 0.01 * epsilon, {}, "raw", users=5)
        for label, by_scheme in accuracy.items()
        for scheme, value in by_scheme.items()
        for epsilon in (1.0, 2.0)
        for seed in (0, 1)
    ]


def test_twins_share_a_name() -> None:
    rows = cells(
        a={"iid": 0.8, "one-class": 0.7},
        twin={"iid": 0.802, "one-class": 0.699},
        b={"iid": 0.5, "one-class": 0.3},
    )
    found = _panels(rows, "scheme", ("label", "users"), "epsilon")
    own = ["a,\ntwin", "b"]
    assert {title: list(lines) for title, lines in found.items()} == {
        "pictures dealt at random": own,
        "users with one class each": own,
    }


@pytest.mark.parametrize("many", [2, 12])
def test_any_number_of_lines_can_be_drawn(many: int, tmp_path) -> None:
    rows = cells(**{f"method {k}": {"iid": 0.05 * k, "one-class": 0.04 * k} for k in range(many)})
    draw_frontier(rows, tmp_path / "figure.png", title="a title", chance=0.1)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


RESULTS = Path(__file__).parents[4] / "results"
SWEEPS = ("frontier_lite0", "frontier_simclr", "frontier_three_encoders", "users")
OTHERS = ("mnist_by_writer", "convergence", "rivals/pca32", "rivals/pca128")


@pytest.mark.parametrize("name", [*SWEEPS, *OTHERS])
def test_a_recorded_result_is_still_a_table(name: str) -> None:
    path = RESULTS / name / "results.json"
    packed = path.with_name("results.json.gz")
    text = path.read_text() if path.exists() else gzip.decompress(packed.read_bytes()).decode()
    assert tell(json.loads(text)).count("\n") >= 2
