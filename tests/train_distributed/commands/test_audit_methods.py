"""Every method that `audit --method` offers can be audited without another option."""

import json
from typing import get_args

import pytest

from train_distributed.commands.choices import PrivateMethodName

FEW = ["--features", "1", "--trials", "16"]  # 3 pairs of data sets, not 25
METHODS = [  # dp-fl takes as long as all others together
    pytest.param(each, marks=pytest.mark.slow) if each == "dp-fl" else each
    for each in get_args(PrivateMethodName)
]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_is_offered_is_attacked(call, tmp_path, method: str) -> None:
    code, printed, error = call("audit", "--method", method, "--out", "made", *FEW)
    assert (code, error) == (0, "")
    assert "0 of 1 promises broken" in printed
    (audited,) = json.loads((tmp_path / "made" / "audit.json").read_text())["audits"]
    assert audited["method"] == method
    assert audited["claim"]["epsilon"] <= 3.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--method", "admm-dual", "--honest-fraction", "0.5"], "honest_fraction must be left out"),
        (["--method", "charter-sum", "--noise", "float"], "noise must be 'discrete'"),
        (["--method", "amp", "--noise", "discrete"], "noise must be 'float' for 'amp'"),
        (["--method", "charter", "--rows", "2"], "rounds must be <= rows/3"),
        (["--method", "dp-fl", "--min-survivors", "1"], "min_survivors"),
    ],
)
def test_what_a_method_cannot_is_refused_in_one_line(call, tmp_path, change, message) -> None:
    code, _, error = call("audit", "--trials", "16", "--users", "2", *change)
    assert code == 2
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not list(tmp_path.iterdir())
