"""The commands as a user meets them: output, refusals in one line, nothing half-written."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from embed import EmbeddingSet, PublicTransform
from train_distributed.ledger.ledger import Ledger


def test_run_writes_model_report_and_figure(call, sets, tmp_path):
    private, public = sets
    out = tmp_path / "out"
    code, printed, _ = call(
        "run", "--embeddings", private, "--public", public, "--epsilon", "3", "--out", str(out)
    )
    assert code == 0
    assert "replace one record" in printed
    for name in ("majority_baseline      0.333", "balanced_accuracy ", "macro_f1 ", "auroc "):
        assert f"\n{name}" in printed
    assert sorted(p.name for p in out.iterdir()) == [
        "confusion.png",
        "model.safetensors",
        "privacy.png",
        "report.json",
    ]
    report = json.loads((out / "report.json").read_text())
    assert report["epsilon"] == 3
    assert report["noise"] == "discrete"
    assert report["users"] == 8
    assert report["suitable_for_release"] is True
    assert report["configuration"]["method"] == "discriminant"


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [("gradient-perturbation", "9"), ("amp", "9"), ("dp-svm-smo", "9"), ("non-private-svm", "inf")],
)
def test_baselines_run_by_the_same_command(call, sets, tmp_path, method, epsilon):
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--out", str(tmp_path / "out")]
    code, _, error = call(*common, "--method", method, "--epsilon", epsilon)
    assert (code, error) == (0, "")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["configuration"]["method"] == method
    assert report["suitable_for_release"] is False
    assert {"test_accuracy", "epsilon", "delta", "rounds", "bytes_per_user"} <= report.keys()
    assert report["simulation_only"]["seconds"] > 0


@pytest.mark.parametrize("method", ["discriminant", "softmax"])
def test_a_prior_from_a_file_is_in_report_and_model(call, sets, tmp_path, method, no_pictures):
    (tmp_path / "prior.json").write_text('{"c": 0.5, "a": 0.2, "b": 0.3}')
    out = tmp_path / "out"
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--method", method]
    code, _, error = call(*common, "--prior", str(tmp_path / "prior.json"), "--out", str(out))
    assert (code, error) == (0, "")
    report = json.loads((out / "report.json").read_text())
    assert report["configuration"]["options"]["prior"] == [0.2, 0.3, 0.5]
    wanted = {"a": 0.2, "b": 0.3, "c": 0.5}
    assert (report["prior"], report["class_prior"]) == ("given", wanted)
    with safe_open(out / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["prior"]) == [0.2, 0.3, 0.5]


def test_infinite_epsilon_says_not_private(call, sets, no_pictures):
    code, printed, _ = call("run", "--embeddings", sets[0], "--public", sets[1], "--epsilon", "inf")
    assert code == 0
    assert "not private" in printed


def test_simulated_partition_and_seed(call, sets, tmp_path, no_pictures):
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--scheme", "one-class"]
    common += ["--users", "9", "--seed", "5", "--method", "softmax"]
    for name in ("one", "two"):
        code, printed, error = call(*common, "--out", str(tmp_path / name))
        assert (code, error) == (0, "")
        assert "seeded" in printed
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two


@pytest.mark.parametrize(("scheme", "suits"), [("iid", True), ("one-class", False)])
def test_users_made_by_label_are_a_simulation(
    call, sets, tmp_path, scheme: str, suits: bool, no_pictures
):
    """A replaced record moves other records from user to user there: no promise covers that."""
    out = tmp_path / "out"
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--out", str(out)]
    assert (
        call(
            *common,
            "--method",
            "discriminant",
            "--sums",
            "1",
            "--scheme",
            scheme,
            "--users",
            "4",
        )[0]
        == 0
    )
    report = json.loads((out / "report.json").read_text())
    assert report["suitable_for_release"] is suits
    assert report["noise"] == "discrete"
    assert ("users were given rows by their labels" in str(report)) is not suits


@pytest.mark.parametrize("part", [slice(None), slice(None, None, -1), slice(3, 90, 8)])
def test_a_transform_that_has_seen_private_rows_is_refused(call, sets, tmp_path, part):
    """The whole set, the set backwards, one user's rows."""
    before = sorted(tmp_path.rglob("*"))
    path = tmp_path / "t.safetensors"
    PublicTransform.fit(EmbeddingSet.open(sets[0]).embeddings[part].copy()).save(path)
    code, printed, error = call("run", "--embeddings", sets[0], "--transform", str(path))
    assert (code, printed) == (2, "")
    assert "transform must not have seen private rows" in error
    assert error.count("\n") == 1
    path.unlink()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_transform_of_unknown_origin_must_be_vouched_for(call, sets, tmp_path, no_pictures):
    fitted = PublicTransform.fit(EmbeddingSet.open(sets[1]))
    PublicTransform.from_tensors(fitted.tensors()).save(tmp_path / "t.safetensors")
    arguments = ["run", "--embeddings", sets[0], "--transform", str(tmp_path / "t.safetensors")]
    code, _, error = call(*arguments)
    assert code == 2
    assert "transform must say which rows it has seen for discrete noise" in error
    assert call(*arguments, "--vouch-for-transform", "--out", str(tmp_path / "out"))[0] == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["public_transform"] == "unknown, vouched for"
    assert report["configuration"]["vouch_for_transform"] is True


def test_classes_that_were_counted_must_be_declared(call, sets, tmp_path, no_pictures):
    meta = json.loads((tmp_path / "private" / "meta.json").read_text())
    counted = meta | {"class_names": ["0", "1", "2"], "classes": "inferred"}
    (tmp_path / "private" / "meta.json").write_text(json.dumps(counted))
    arguments = ["run", "--embeddings", sets[0], "--public", sets[1]]
    code, _, error = call(*arguments)
    assert code == 2
    assert "num_classes must be given for discrete noise" in error
    assert call(*arguments, "--num-classes", "3")[0] == 0
    assert "counted from the private labels" in call(*arguments, "--seed", "1")[1]


def test_large_discrete_runs_must_be_asked_for(call, sets, monkeypatch):
    monkeypatch.setattr("train_distributed.one_shot.release.DISCRETE_NUMBERS", 10)
    code, _, error = call("run", "--embeddings", sets[0], "--public", sets[1])
    assert code == 2
    assert "noise must be chosen" in error


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interrupted_run_leaves_nothing(call, sets, tmp_path, monkeypatch, number):
    """A real signal while the files are being written: no directory, whole or partial, is left.

    What had been reserved for it counts: its noise was drawn. Its centre waits for the next try.
    """
    kept = [tmp_path / "private.ledger", tmp_path / "private.ledger.centre"]
    before = sorted([*tmp_path.rglob("*"), *kept])

    def stop(*_: object) -> None:
        assert len(list(tmp_path.glob(".made.*.partial/*"))) == 2
        os.kill(os.getpid(), number)

    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", stop)
    code, _, error = call(
        "run", "--embeddings", sets[0], "--public", sets[1], "--out", str(tmp_path / "made")
    )
    assert code == 130
    assert "interrupted" in error
    assert sorted(tmp_path.rglob("*")) == before
    assert Ledger.open(tmp_path / "private.ledger").total().epsilon(1e-5) == pytest.approx(1.0)


def test_the_module_runs_as_a_program():
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "train_distributed", "account", "--epsilon", "0"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: exactly two of epsilon, delta, noise_multiplier")
