"""Tables and figures of sweeps: the largest class, balanced accuracy, lines alike."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embed import EmbeddingSet
from train_distributed.commands.comparing import Sweep
from train_distributed.research.experiments import figures
from train_distributed.research.experiments.catalogue import tell
from train_distributed.research.experiments.figures import Summary
from train_distributed.simulation.plan import Result

ROW = Result("softmax", "softmax", "iid", 1.0, 0, 0.899, {}, "raw", balanced=0.5, majority=0.899)


@pytest.fixture(scope="module")
def sets(tmp_path_factory) -> Path:
    """Nine rows in ten are of one class, and features say nothing of it."""
    home = tmp_path_factory.mktemp("sweeps")
    draw = np.random.default_rng(0)
    labels = (np.arange(200) % 10 == 0).astype(np.int64)
    x, public = (draw.standard_normal((n, 6)).astype(np.float32) for n in (200, 60))
    split = np.repeat([0, 1], [150, 50]).astype(np.uint8)
    meta = {"class_names": ["healthy", "ill"], "data": "blobs"}
    EmbeddingSet(embeddings=x, labels=labels, split=split, meta=meta).save(home / "private")
    EmbeddingSet(embeddings=public, labels=np.arange(60) % 3).save(home / "public")

    return home


@pytest.mark.parametrize("name", ["frontier", "non-iid"])
def test_an_accuracy_is_beside_that_of_the_largest_class(sets, tmp_path, name: Any) -> None:
    given: dict[str, Any] = {"users": (4,), "epsilons": (0.5,), "seeds": 1, "components": (2,)}
    Sweep(name, sets / "private", sets / "public", out=(out := tmp_path / "out"), **given).run()
    cells = json.loads((out / "results.json").read_text())["cells"]
    assert {cell["majority"] for cell in cells} == {0.9}
    assert all(abs(cell["balanced"] - 0.5) < 0.3 for cell in cells)
    text, priors = (out / "table.txt").read_text().split("with prior equal: ")
    assert text.endswith("always the largest class: 90.0, balanced accuracy: in brackets\n")
    assert priors.count("(") == 2  # of each prior
    assert text.count(" ± ") == text.count("(") > 3


def test_what_is_not_known_of_every_row_is_not_averaged() -> None:
    older = replace(ROW, seed=1, balanced=None, majority=None)
    assert str(Summary.of([ROW])) == "89.9 ± 0.0 (50.0)"
    assert str(Summary.of([ROW, older])) == "89.9 ± 0.0"
    assert "unknown" in figures.explained([ROW, older])
    another = replace(ROW, options={"a": 1}, accuracy=0.8)
    found = figures.summarise([ROW, replace(ROW, seed=1), another])
    assert found["softmax", "iid", 1.0] == Summary(0.899, 0.0, 2, 0.5, 0.899)
    assert "always the largest class: 89.9" in figures.table([ROW])


def test_lines_that_differ_in_balanced_accuracy_alone_stay_apart() -> None:
    better = replace(ROW, label="sums", balanced=0.7)
    (lines,) = figures._panels([ROW, better], "scheme", ("label",), "epsilon").values()
    assert len(lines) == 2
    levels = figures._levels
    assert levels([ROW], 0.5) == {"guessing": 0.5, "always the largest class": 0.899}
    assert levels([ROW], 0.9) == {"guessing, always the largest class": 0.899}
    assert levels([replace(ROW, majority=None)], 0.5) == {"guessing": 0.5}


def cells(**accuracy: tuple[float, float]) -> list[Result]:
    """Two ε and two seeds of every method, by scheme."""
    return [
        Result(label, label, scheme, epsilon, seed, value + 0.01 * epsilon, {}, "raw", users=5)
        for label, by_scheme in accuracy.items()
        for scheme, value in zip(("iid", "one-class"), by_scheme, strict=True)
        for epsilon in (1.0, 2.0)
        for seed in (0, 1)
    ]


def test_twins_share_a_name() -> None:
    rows = cells(a=(0.8, 0.7), twin=(0.802, 0.699), b=(0.5, 0.3))
    found = figures._panels(rows, "scheme", ("label", "users"), "epsilon")
    assert list(found) == ["pictures dealt at random", "users with one class each"]
    assert [list(lines) for lines in found.values()] == [["a,\ntwin", "b"]] * 2


RESULTS = Path(__file__).parents[4] / "results"
SWEEPS = ("frontier_lite0", "frontier_simclr", "frontier_three_encoders", "users")
OTHERS = ("mnist_by_writer", "convergence", "rivals/pca32", "rivals/pca128")


@pytest.mark.parametrize("name", [*SWEEPS, *OTHERS])
def test_a_recorded_result_is_still_a_table(name: str) -> None:
    path = RESULTS / name / "results.json"
    packed = path.with_name("results.json.gz")
    text = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
    assert tell(json.loads(text)).count("\n") >= 2
