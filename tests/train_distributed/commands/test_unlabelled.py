"""A set without labels, or with a broken row, at every door that learns: one line, nothing left."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, release
from train_distributed.research.protection.training import FederationOptions, head_federation
from train_distributed.simulation.rehearsal import Rehearsal, Sizes


def test_a_row_that_is_not_finite_is_named_with_its_picture(say, sets, tmp_path: Path) -> None:
    private = EmbeddingSet.open(sets[0])
    x = np.array(private.embeddings)
    x[70, 1] = np.inf
    EmbeddingSet(
        embeddings=x,
        labels=private.labels,
        users=private.users,
        split=private.split,
        names=np.array([f"{k}.png" for k in range(120)]),
        meta=private.meta_of_rows,
    ).save(tmp_path / "broken")
    code, _, error = say("run", "--embeddings", "broken", "--public", "public", "--out", "out")
    assert (code, error.count("\n")) == (2, 1)
    assert "must be finite, got inf in row 70 of broken/embeddings.npy (70.png)" in error
    assert not (tmp_path / "out").exists()


def test_the_functions_behind_the_commands_refuse_as_well(sets) -> None:
    private, public = (EmbeddingSet.open(path) for path in sets)
    bare = EmbeddingSet(embeddings=private.embeddings, labels=np.full(120, -1))
    privacy = Privacy(1.0, 1e-5)
    rule = "must have labels to learn from, got a set of 120 rows without any"
    with pytest.raises(ValueError, match=f"embeddings {rule}"):
        release(bare, "discriminant", privacy, num_classes=3, sums=1)
    with pytest.raises(ValueError, match=f"embeddings {rule}"):
        learn(bare, "gradient-perturbation", privacy, num_classes=3)
    with pytest.raises(ValueError, match=f"public {rule}"):
        Rehearsal.of(bare, Sizes(users=1, rows_per_user=9, num_classes=2), privacy)
    options = FederationOptions(clients=1, rows=5, step=0.1, rounds=1)
    from embed import PublicTransform

    with pytest.raises(ValueError, match=f"embeddings {rule}"):
        head_federation(bare, public, PublicTransform.fit(public), options)


def test_run_asks_whose_a_set_without_users_is(say, sets, tmp_path: Path) -> None:
    private = EmbeddingSet.open(sets[0])
    EmbeddingSet(
        embeddings=private.embeddings,
        labels=private.labels,
        split=private.split,
        meta=private.meta,
    ).save(tmp_path / "nobody")
    command = ["run", "--embeddings", "nobody", "--public", "public"]
    command += ["--method", "discriminant", "--sums", "1", "--out", "out"]
    code, _, error = say(*command)
    assert code == 2
    assert error.count("\n") == 1
    assert "(embed run --one-user), or be made up (simulate --users N)" in error
    assert not (tmp_path / "out").exists()
    code, printed, error = say("simulate", *command[1:], "--users", "3")
    assert code == 0, error
    assert "users                  3" in printed
    users = np.zeros(len(private), np.int64)
    replace(EmbeddingSet.open(tmp_path / "nobody"), users=users).save(tmp_path / "owned")
    command[2], command[-1] = "owned", "again"
    code, printed, error = say(*command, "--honest-fraction", "1")
    assert code == 0, error
    assert "users                  1" in printed
