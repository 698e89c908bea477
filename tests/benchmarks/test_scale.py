"""The benchmark of a million users still runs, and its totals are those of the closed forms."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.bench_scale import METHODS, stream


@pytest.mark.slow
def test_generated_users_give_their_closed_totals(tmp_path: Path) -> None:
    stream((1300,), tmp_path / "scale.json")
    rows = json.loads((tmp_path / "scale.json").read_text())["rows"]
    assert [(row["method"], row["users"]) for row in rows] == list(
        zip(METHODS, (1300, 13), strict=True)
    )
    assert rows[0]["error"] <= 1e-14
    assert rows[1]["error"] is None
    for row in rows:
        assert abs(row["noise"] - 1) <= 0.15  # of at least 640 draws: five standard deviations
