"""The benchmark of a million users still runs, and its totals are those of the closed forms."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_generated_users_give_their_closed_totals() -> None:
    script = Path(__file__).with_name("bench_scale.py")
    command = [sys.executable, str(script), "--users", "1300"]
    root = os.environ | {"PYTHONPATH": str(script.parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, env=root)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    names = ["discriminant", "discriminant-integers"]
    assert [row[:2] for row in rows] == [[n, "13" if "-" in n[8:] else "1300"] for n in names]
    for method, *_, error, noise in rows:
        if method.endswith("integers"):
            assert error == "nan"
        else:
            assert float(error) <= 1e-14
        assert abs(float(noise) - 1) <= 0.15  # of at least 640 draws: five standard deviations
