"""All learners side by side on small clusters."""

import json
from dataclasses import replace

import pytest
import torch

from tests.embedding_sets import clusters
from train_distributed import partition
from train_distributed.commands.comparing import Sweep
from train_distributed.research.experiments import rivals
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.rivals.common import UserRows
from train_distributed.research.rivals.options import AdmmOptions, CharterOptions


@pytest.fixture
def sweep(tmp_path):
    clusters(2600, 3, 8, scale=6, noise=1, test=200).save(tmp_path / "private")
    clusters(500, 3, 8, scale=6, noise=1, seed=1).save(tmp_path / "public")
    conditions = Conditions(components=(4,), users=(8,), epsilons=(10.0,), seeds=2)
    paths = tmp_path / "private", tmp_path / "public"
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
