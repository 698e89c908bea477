"""The journal of a sweep: continued by the same work of the same version, and by nothing else."""

import shutil
from pathlib import Path
from types import ModuleType

import pytest

import heads
from train_distributed.research.experiments import checkpoint
from train_distributed.research.experiments.checkpoint import Checkpoint


def test_a_journal_of_another_sweep_is_not_continued(tmp_path):
    rows = [{"accuracy": 0.5, "options": {}}]
    first = Checkpoint(tmp_path / "j", {"users": (1,)})
    assert first.read() == {}
    first.append("job", rows)
    assert Checkpoint(tmp_path / "j", {"users": (1,)}).read() == {"job": rows}
    other = Checkpoint(tmp_path / "j", {"users": (2,)})
    assert other.read() == {}
    with pytest.raises(ValueError, match="must be of this work"):
        other.append("job", rows)


def test_a_checkpoint_that_was_changed_is_named(tmp_path):
    journal = Checkpoint.beside(tmp_path / "out", {"users": (1,)})
    journal.append("job", [{"x": 1}])
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
