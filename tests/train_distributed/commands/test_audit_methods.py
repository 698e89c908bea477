"""Every method that `audit --method` offers can be audited without another option."""

import json
from typing import get_args

import pytest

from train_distributed.commands.options import PrivateMethodName
from train_distributed.research.audit import worst_case

TRIALS = ["--trials", "16"]
METHODS = [  # dp-fl takes as long as all others together
    pytest.param(each, marks=pytest.mark.slow) if each == "dp-fl" else each
    for each in get_args(PrivateMethodName)
]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_is_offered_is_attacked(call, tmp_path, monkeypatch, method: str) -> None:
    monkeypatch.setattr(worst_case, "DEGREES", (0, 180))  # 3 pairs of data sets, not 25
    code, printed, error = call("audit", "--method", method, "--out", "made", *TRIALS)
    assert (code, error) == (0, "")
    assert "0 of 1 promises broken" in printed
    (audited,) = json.loads((tmp_path / "made" / "audit.json").read_text())["audits"]
    assert audited["method"] == method
    assert audited["claim"]["epsilon"] <= 3.0
