"""The report as a type: unknown keys are kept, known ones checked, files without version read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from train_distributed.one_shot.report_file import VERSION, Report


def test_every_key_comes_back_in_its_place(tmp_path: Path) -> None:
    written = {"zebra": [1], "private": True, "epsilon": 2, "encoding": None, "written": 3}
    Report.of(written).write(tmp_path / "report.json")
    again = Report.read(tmp_path / "report.json")
    assert list(again.items()) == [("report_version", VERSION), *written.items()]
    assert (again.private, again.epsilon, again.delta) == (True, 2.0, 1.0)


def test_a_report_of_before_has_no_version_and_promises_nothing_by_default(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("{}")
    read = Report.read(tmp_path / "report.json")
    assert (read.report_version, read.private, read.epsilon) == (VERSION, False, math.inf)
    assert not read.suitable_for_release
    assert Report.of({"epsilon": "not private"}).epsilon == math.inf


@pytest.mark.parametrize(
    "written",
    [
        {"epsilon": -1},
        {"epsilon": "much"},
        {"delta": 0},
        {"users": True},
        {"private": "yes"},
        {"report_version": VERSION + 1},
        {"test_metrics": {"rows": 3}},
        {"ledger": {"file": "x"}},
    ],
)
def test_a_known_key_of_another_kind_is_one_line(written: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"report\.json: report must") as refused:
        Report.read(tmp_path / "report.json")
    assert "\n" not in str(refused.value)
    assert f"$.{next(iter(written))}" in str(refused.value)
