"""Lines of an experiment: ours are what `run` does; a journal continues the same work alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import heads
from embed import EmbeddingSet, PublicTransform
from tests.embedding_sets import clusters
from train_distributed.commands.releasing import Simulate
from train_distributed.one_shot import request
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import build_method
from train_distributed.research.experiments import checkpoint
from train_distributed.research.experiments.catalogue import ours, published, trials
from train_distributed.research.experiments.checkpoint import Checkpoint
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.simulation.plan import Scenario

USERS, CLASSES, WIDTH = 10, 4, 12


@pytest.fixture
def sets() -> tuple[EmbeddingSet, EmbeddingSet]:
    public = replace(clusters(160, 8, WIDTH, first=2, seed=1), meta={})
    return clusters(130, CLASSES, WIDTH, test=30), public


@pytest.mark.parametrize("line", ours(), ids=lambda line: line.method)
@pytest.mark.parametrize("epsilon", [0.5, 8.0])
def test_ours_has_the_settings_of_run(sets, tmp_path, line, epsilon, monkeypatch) -> None:
    paths = {name: tmp_path / name for name in ("embeddings", "public")}
    for rows, path in zip(sets, paths.values(), strict=True):
        rows.save(path)
    given = {"method": line.method, "epsilon": epsilon, "users": USERS, "seed": 0}
    Simulate(**paths, **given, out=tmp_path / "out").run()
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
    rows = [{"accuracy": 0.5, "options": {}}]
    first = Checkpoint(tmp_path / "j", {"users": (1,)})
    assert first.read() == {}
    first.append("job", rows)
    assert Checkpoint(tmp_path / "j", {"users": (1,)}).read() == {"job": rows}
    other = Checkpoint(tmp_path / "j", {"users": (2,)})
    assert other.read() == {}
    with pytest.raises(ValueError, match="must be of this work"):
        other.append("job", rows)
    journal = Checkpoint.beside(tmp_path / "out", {"users": (1,)})
    journal.append("job", rows)
    journal.path.write_text("nonsense\n")
    with pytest.raises(ValueError, match=r"unfinished\.sqlite must be"):
        Checkpoint.beside(tmp_path / "out", {"users": (1,)}).read()


def test_rows_of_another_version_are_not_continued(tmp_path, monkeypatch):
    """A sweep killed before an update would mix what two estimators have found."""
    before = Checkpoint.beside(tmp_path / "out", {"users": (1,)})
    before.append("job", [{"accuracy": 0.5}])
    assert Checkpoint.beside(tmp_path / "out", {"users": (1,)}).read() == before.read() != {}
    assert before.identity["sources"] == checkpoint.sources()
    room = tmp_path / "room"
    shutil.copytree(Path(heads.__file__).parent, room)
    copied = ModuleType("heads")
    copied.__file__ = str(room / "__init__.py")
    monkeypatch.setattr(checkpoint, "ROOMS", (copied,))
    monkeypatch.setattr(checkpoint, "sources", checkpoint.sources.__wrapped__)
    one = checkpoint.sources()
    (room / "balls.py").write_text("RADIUS = 2\n")
    assert checkpoint.sources() != one
    after = Checkpoint.beside(tmp_path / "out", {"users": (1,)})
    assert after.read() == {}
    assert after.others() == [before.path]
