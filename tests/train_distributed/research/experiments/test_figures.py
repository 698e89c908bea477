"""Figures of sweeps: the largest class, balanced accuracy, lines alike, older results."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.commands.comparing import Plot, Sweep
from train_distributed.research.experiments import figures
from train_distributed.research.experiments.catalogue import tell
from train_distributed.research.experiments.figures import (
    Summary,
    _panels,
    draw_frontier,
    explained,
    summarise,
    table,
)
from train_distributed.simulation.plan import Result

ROW = Result("softmax", "softmax", "iid", 1.0, 0, 0.899, {}, "raw", balanced=0.5, majority=0.899)


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Callable[..., Path]:
    """Folder of a sweep's result; nine rows in ten are of one class, whose features say nothing."""
    home = tmp_path_factory.mktemp("sweeps")
    draw = np.random.default_rng(0)
    labels = (np.arange(400) % 10 == 0).astype(np.int64)
    x = draw.standard_normal((400, 6)).astype(np.float32)
    split = np.repeat([0, 1], [300, 100]).astype(np.uint8)
    meta = {"class_names": ["healthy", "ill"], "data": "blobs"}
    EmbeddingSet(embeddings=x, labels=labels, split=split, meta=meta).save(home / "private")
    public = draw.standard_normal((60, 6)).astype(np.float32)
    EmbeddingSet(embeddings=public, labels=np.arange(60) % 3).save(home / "public")

    @cache
    def sweep(name: Any, **changes: Any) -> Path:
        given: dict[str, Any] = {"users": (10,), "epsilons": (0.5,), "seeds": 2, "components": (2,)}
        out = home / f"{name} {len(changes)}"
        Sweep(name, home / "private", home / "public", out=out, **given | changes).run()
        return out

    return sweep


def cells_of(out: Path) -> list[dict[str, Any]]:
    return json.loads((out / "results.json").read_text())["cells"]


@pytest.mark.parametrize("name", ["frontier", "non-iid"])
def test_an_accuracy_is_beside_that_of_the_largest_class(swept, name: str) -> None:
    cells = cells_of(out := swept(name))
    assert {cell["majority"] for cell in cells} == {0.9}
    assert all(abs(cell["balanced"] - 0.5) < 0.3 for cell in cells)
    text, priors = (out / "table.txt").read_text().split("with prior equal: ")
    assert text.endswith("always the largest class: 90.0, balanced accuracy: in brackets\n")
    assert priors.count("(") == 2  # of each prior
    assert text.count(" ± ") == text.count("(") > 3


def test_folds_have_their_own(swept) -> None:
    folded = cells_of(swept("frontier", folds=3, seeds=1, schemes=("iid",)))
    assert all(0.88 < cell["majority"] < 0.92 for cell in folded)


def test_so_do_rivals_of_many_rounds(swept) -> None:
    cells = cells_of(out := swept("rivals"))
    assert {cell["majority"] for cell in cells if "accuracy" in cell} == {0.9}
    head = (out / "table.txt").read_text().splitlines()[0]
    assert "balanced accuracy  always the largest class" in head


@pytest.mark.parametrize("missing", [("balanced", "majority"), ("majority",)])
@pytest.mark.parametrize("name", ["frontier", "rivals"])
def test_an_older_result_is_drawn_and_says_what_it_lacks(swept, tmp_path, capsys, name, missing):
    result = json.loads((swept(name) / "results.json").read_text())
    for cell in result["cells"]:
        for each in missing:
            cell.pop(each, None)
    path = tmp_path / "results.json"
    path.write_text(json.dumps(result))
    capsys.readouterr()
    Plot(path, out=tmp_path / "again.png").run()
    said = capsys.readouterr().out
    assert said.count("unknown") >= len(missing)
    assert ("(" in said.splitlines()[1]) is ("balanced" not in missing and name != "rivals")
    assert (tmp_path / "again.png").stat().st_size > 10_000


def test_what_is_not_known_of_every_row_is_not_averaged() -> None:
    older = replace(ROW, seed=1, balanced=None, majority=None)
    assert str(Summary.of([ROW])) == "89.9 ± 0.0 (50.0)"
    assert str(Summary.of([ROW, older])) == "89.9 ± 0.0"
    assert "unknown" in explained([ROW, older])
    found = summarise([ROW, replace(ROW, seed=1), replace(ROW, options={"a": 1}, accuracy=0.8)])
    assert found["softmax", "iid", 1.0] == Summary(0.899, 0.0, 2, 0.5, 0.899)
    assert "always the largest class: 89.9" in table([ROW])


def test_lines_that_differ_in_balanced_accuracy_alone_stay_apart() -> None:
    better = replace(ROW, label="sums", balanced=0.7)
    (lines,) = figures._panels([ROW, better], "scheme", ("label",), "epsilon").values()
    assert len(lines) == 2
    levels = figures._levels
    assert levels([ROW], 0.5) == {"guessing": 0.5, "always the largest class": 0.899}
    assert levels([ROW], 0.9) == {"guessing, always the largest class": 0.899}
    assert levels([replace(ROW, majority=None)], 0.5) == {"guessing": 0.5}


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
