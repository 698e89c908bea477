"""Sweeps: ours is what `run` does, all learners, a journal, tables and figures, convergence."""

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

import heads
from embed import EmbeddingSet, PublicTransform
from tests.embedding_sets import clusters
from train_distributed import partition
from train_distributed.commands.comparing import Sweep
from train_distributed.commands.releasing import Simulate
from train_distributed.one_shot import request
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.research.experiments import checkpoint, convergence, figures, rivals
from train_distributed.research.experiments.catalogue import ours, published, tell, trials
from train_distributed.research.experiments.checkpoint import Checkpoint
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.convergence import Hinge
from train_distributed.research.experiments.figures import Summary
from train_distributed.research.rivals.common import UserRows
from train_distributed.research.rivals.options import AdmmOptions, CharterOptions
from train_distributed.simulation import runner
from train_distributed.simulation.plan import Result, Scenario

USERS = 10


def saved(folder: Path, private: EmbeddingSet, public: EmbeddingSet) -> tuple[Path, Path]:
    private.save(folder / "private")
    public.save(folder / "public")
    return folder / "private", folder / "public"


@pytest.fixture
def sets() -> tuple[EmbeddingSet, EmbeddingSet]:
    public = replace(clusters(160, 8, 12, first=2, seed=1), meta={})
    return clusters(130, 4, 12, test=30), public


@pytest.mark.parametrize("line", ours(), ids=lambda line: line.method)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_ours_has_the_settings_of_run(sets, tmp_path, line, epsilon, monkeypatch) -> None:
    private, public = saved(tmp_path, *sets)
    given = {"method": line.method, "epsilon": epsilon, "users": USERS, "seed": 0}
    Simulate(embeddings=private, public=public, **given, out=tmp_path / "out").run()
    used = json.loads((tmp_path / "out" / "report.json").read_text())["configuration"]
    played = list[tuple[str, dict[str, Any]]]()

    def building(name: str, transform: PublicTransform, classes: int, options: Any) -> Method:
        assert torch.equal(transform.row_mean, PublicTransform.fit(sets[1]).row_mean)
        played.append((name, dict(options)))
        return build_method(name, transform, classes, options)

    monkeypatch.setattr(request, "build_method", building)
    work = trials([line], [Scenario(users=USERS)], Conditions(epsilons=(epsilon,), seeds=1), *sets)
    dict(work.jobs({}))
    ((name, options),) = played
    assert (name, json.loads(json.dumps(options))) == (line.method, used["options"])


def test_each_line_has_a_row_for_each_epsilon_and_seed(sets) -> None:
    conditions = Conditions(epsilons=(0.5, 8.0), seeds=2)
    partitions = Scenario(users=USERS), Scenario(users=4, scheme="one-class")
    lines = [*ours(), *published()]
    work = trials(lines, partitions, conditions, *sets)
    done = dict(work.jobs({}))
    assert tuple(done) == work.keys
    assert len(set(work.keys)) == len(work.keys)
    rows = [row for key in work.keys for row in done[key]]
    names = ("label", "scheme", "users", "options", "epsilon", "seed")
    found = {str([row[name] for name in names]) for row in rows}
    assert len(found) == len(rows) == len(lines) * 8
    of_paper = [row for row in rows if "published" in row["label"]]
    assert {row["transform"] for row in of_paper} == {"published"}
    assert {row["options"]["bound"] for row in of_paper} == {"paper"}
    left = dict(work.jobs(dict(list(done.items())[:-3])))
    assert tuple(left) == work.keys[-3:]


def test_a_journal_of_another_sweep_is_not_continued_and_a_changed_one_is_named(tmp_path):
    rows, work = [{"accuracy": 0.5, "options": {}}], {"users": (1,)}
    first = Checkpoint(tmp_path / "j", work)
    assert first.read() == {}
    first.append("job", rows)
    assert Checkpoint(tmp_path / "j", work).read() == {"job": rows}
    other = Checkpoint(tmp_path / "j", {"users": (2,)})
    assert other.read() == {}
    with pytest.raises(ValueError, match="must be of this work"):
        other.append("job", rows)
    journal = Checkpoint.beside(tmp_path / "out", work)
    journal.append("job", rows)
    journal.path.write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"unfinished\.sqlite must be"):
        Checkpoint.beside(tmp_path / "out", work).read()


def test_rows_of_another_version_are_not_continued(tmp_path, monkeypatch):
    """A sweep killed before an update would mix what two estimators have found."""
    before = Checkpoint.beside(tmp_path / "out", {})
    before.append("job", [{"accuracy": 0.5}])
    assert Checkpoint.beside(tmp_path / "out", {}).read() == before.read() != {}
    assert before.identity["sources"] == checkpoint.sources()
    room, copied = tmp_path / "room", ModuleType("heads")
    shutil.copytree(Path(heads.__file__).parent, room)
    copied.__file__ = str(room / "__init__.py")
    monkeypatch.setattr(checkpoint, "ROOMS", (copied,))
    monkeypatch.setattr(checkpoint, "sources", checkpoint.sources.__wrapped__)
    one = checkpoint.sources()
    (room / "balls.py").write_text("RADIUS = 2\n")
    assert checkpoint.sources() != one
    after = Checkpoint.beside(tmp_path / "out", {})
    assert after.read() == {}
    assert after.others() == [before.path]


@pytest.fixture
def sweep(tmp_path):
    private = clusters(2600, 3, 8, scale=6, noise=1, test=200)
    paths = saved(tmp_path, private, clusters(500, 3, 8, scale=6, noise=1, seed=1))
    conditions = Conditions(components=(4,), users=(8,), epsilons=(10.0,), seeds=2)
    return Sweep("rivals", *paths, **vars(conditions), out=tmp_path / "out")


def test_every_learner_appears_with_its_cost(sweep, capsys):
    sweep.run()
    text = (sweep.out / "table.txt").read_text()
    assert text in capsys.readouterr().out
    rows = json.loads((sweep.out / "results.json").read_text())["cells"]
    labels = [each.label for each in rivals.LEARNERS]
    assert [row["learner"] for row in rows] == 2 * labels
    head, *lines = text.splitlines()
    assert [line.split("  ")[0] for line in lines] == labels
    assert "balanced accuracy  always the largest class" in head
    for row in rows:
        name, spent = row["learner"], row["epsilon"]
        if name in ("discriminant", *rivals.WITHOUT_NOISE):
            assert row["accuracy"] > 0.9
        assert row["majority"] == pytest.approx(67 / 200)
        assert spent is None if name in rivals.WITHOUT_NOISE else 9.9 < spent <= 10
    with pytest.raises(FileExistsError, match="must not exist"):
        sweep.run()


def test_a_learner_that_refuses_is_told_with_its_reason(sweep):
    replace(sweep, users=(1200,), seeds=1).run()  # two rows each: no cut at all
    *_, last = (sweep.out / "table.txt").read_text().splitlines()
    assert last.startswith("4 features, 1200 users, Charter, secure sum: not possible, rounds must")
    rows = json.loads((sweep.out / "results.json").read_text())["cells"]
    charter = {each.label for each in rivals.LEARNERS if "Charter" in each.label}
    assert {row["learner"] for row in rows if "accuracy" not in row} == charter


def test_charter_makes_no_more_cuts_than_its_smallest_client_has_rows_for():
    x, y = torch.ones(40, 20, dtype=torch.float64), torch.arange(40) % 2
    held = UserRows(x, y, partition.split(y, 4), 2, 5.0)  # ten rows each
    wanted = CharterOptions(rounds_per_feature=0.5)
    assert rivals.affordable(wanted, held) == CharterOptions(cut_rounds=3)
    for enough in (CharterOptions(cut_rounds=2), AdmmOptions()):
        assert rivals.affordable(enough, held) == enough


ROW = Result("softmax", "softmax", "iid", 1.0, 0, 0.899, {}, "raw", balanced=0.5, majority=0.899)


@pytest.mark.parametrize("name", ["frontier", "non-iid"])
def test_an_accuracy_is_beside_that_of_the_largest_class(tmp_path, name: Any) -> None:
    """Nine rows in ten are of one class, and features say nothing of it."""
    labels = (np.arange(200) % 10 == 0).astype(np.int64)
    private = replace(clusters(200, 2, 6, scale=0, noise=1, test=50), labels=labels)
    sets = saved(tmp_path, private, clusters(60, 3, 6, scale=0, noise=1, seed=1))
    given = {"users": (4,), "epsilons": (0.5,), "seeds": 1, "components": (2,)}
    out = tmp_path / "out"
    Sweep(name, *sets, out=out, **given).run()
    cells = json.loads((out / "results.json").read_text())["cells"]
    assert {cell["majority"] for cell in cells} == {0.9}
    assert all(abs(cell["balanced"] - 0.5) < 0.3 for cell in cells)
    assert "always the largest class: 90.0, balanced accuracy" in (out / "table.txt").read_text()


def test_heads_as_published_are_averaged_as_they_are(monkeypatch) -> None:
    """In one sum, without a map of the rows, a sum of features or a rule's setting."""
    built: list[Method] = []
    monkeypatch.setattr(runner, "released", lambda method, *_: built.append(method) or 1 / 0)
    sets = clusters(200, 2, 6, test=50), clusters(60, 2, 6)
    for setting in published():
        with pytest.raises(ZeroDivisionError):
            next(trials([setting], [Scenario(users=4)], Conditions(seeds=1), *sets).jobs({}))
    assert len(built) == len(published())
    for setting, method in zip(published(), built, strict=True):
        assert (method.first, method.statistic.dimension) == (None, 7 * 2)
        assert method.transform is not None
        assert method.transform.directions is None
        assert isinstance(method.statistic, TrainedHeads)
        assert method.statistic.head.l2_reg == setting.options["l2_reg"]


def test_what_is_not_known_of_every_row_is_not_averaged() -> None:
    older = replace(ROW, seed=1, balanced=None, majority=None)
    assert str(Summary.of([ROW])) == "89.9 (50.0)"
    assert str(Summary.of([ROW, older])) == "89.9 ± 0.0"
    assert "unknown" in figures.explained([ROW, older])
    another = replace(ROW, options={"a": 1}, accuracy=0.8)
    found = figures.summarise([ROW, replace(ROW, seed=1), another])
    assert found["softmax", "iid", 1.0] == Summary(0.899, 0.0, 2, 0.5, 0.899)
    assert "always the largest class: 89.9" in figures.table([ROW])


RESULTS = "frontier_lite0 frontier_simclr frontier_three_encoders users mnist_by_writer convergence"


@pytest.mark.parametrize("name", [*RESULTS.split(), "rivals/pca32", "rivals/pca128"])
def test_a_recorded_result_is_still_a_table(name: str) -> None:
    (path,) = (Path(__file__).parents[4] / "results" / name).glob("results.json*")
    text = path.read_bytes() if path.suffix == ".json" else gzip.decompress(path.read_bytes())
    assert tell(json.loads(text)).count("\n") >= 2


@pytest.fixture
def z() -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.standard_normal((30, 3)) + np.array([0.5, 1.0, 0.0])


@pytest.mark.parametrize("l2_reg", [0.05, 1.0, 20.0])  # within the margin at the last
def test_minimum_is_that_of_the_smooth_program(z, l2_reg):
    _, value = (problem := Hinge(z, l2_reg)).minimum()
    start = np.concatenate([np.zeros(3), np.ones(30)])  # weights, and a slack of every row
    found = minimize(
        lambda v: l2_reg / 2 * v[:3] @ v[:3] + v[3:].mean(),
        start,
        method="SLSQP",
        bounds=[(None, None)] * 3 + [(0, None)] * 30,
        constraints={"type": "ineq", "fun": lambda v: v[3:] - 1 + z @ v[:3]},
        options={"maxiter": 500, "ftol": 1e-12},
    )
    assert value == pytest.approx(found.fun, abs=1e-7)
    assert value <= problem.objective(found.x[:3]) + 1e-9


def test_averaged_subgradient_is_the_plain_recursion(z):
    found = convergence.averaged_subgradient(z[None], 2.0, 0.3, np.random.default_rng(5))
    rng = np.random.default_rng(5)
    repeats = found.shape[1]
    w, total, average = (np.zeros((repeats, 3)) for _ in range(3))
    for t in range(convergence.STEPS[0] + 1):
        total += (t + 1) * w
        average = 2 * total / ((t + 1) * (t + 2))
        for r, row in enumerate(rng.integers(30, size=(repeats, 1))[:, 0]):
            gradient = 2.0 * w[r] - (z[row] if z[row] @ w[r] < 1 else 0)
            w[r] = w[r] - 2 / (2.0 * (t + 1)) * gradient
            w[r] *= min(1, 0.3 / max(np.linalg.norm(w[r]), 1e-300))
    np.testing.assert_allclose(found[0, :, 0], average, atol=1e-12)


def test_two_users_with_a_class_each_average_to_the_global_model():
    rows = [row for row in convergence.two_clouds() if "model" in row]
    models = {row["model"]: np.array(row["weights"]) for row in rows}
    gap = np.linalg.norm(models["average"] - models["global"])
    assert gap < 1e-2 * np.linalg.norm(models["global"])
    assert np.linalg.norm(models["user 1"] - models["user 2"]) > np.linalg.norm(models["global"])
    assert max(map(np.linalg.norm, models.values())) * convergence.CLIP_NORM < 1
