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


@pytest.mark.parametrize("method", ["least-squares", "softmax"])
def test_a_prior_from_a_file_is_in_report_and_model(call, sets, tmp_path, method):
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
        assert json.loads(file.metadata()["class_prior"]) == wanted


def test_infinite_epsilon_says_not_private(call, sets):
    code, printed, _ = call("run", "--embeddings", sets[0], "--public", sets[1], "--epsilon", "inf")
    assert code == 0
    assert "not private" in printed


def test_simulated_partition_and_seed(call, sets, tmp_path):
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--scheme", "one-class"]
    common += ["--users", "9", "--seed", "5", "--method", "softmax"]
    for name in ("one", "two"):
        code, printed, error = call(*common, "--out", str(tmp_path / name))
        assert (code, error) == (0, "")
        assert "seeded" in printed
    one, two = ((tmp_path / n / "model.safetensors").read_bytes() for n in ("one", "two"))
    assert one == two


BAD = [
    (["--epsilon", "0"], "epsilon must be > 0, got 0"),
    (["--epsilon", "-1"], "epsilon must be > 0, got -1"),
    (["--delta", "1"], "delta must be in (0, 1), got 1"),
    (["--delta", "0"], "delta must be in (0, 1), got 0"),
    (["--epsilon", "soon"], "epsilon"),
    (["--method", "forest"], "method"),
    (["--method", "amp", "--noise", "discrete"], "noise must be 'float' for 'amp'"),
    (["--method", "non-private-svm"], "epsilon must be inf for 'non-private-svm', got 1"),
    (["--method", "dp-fl", "--ridge", "1"], "options must fit method 'dp-fl'"),
    (["--colour", "red"], "--colour"),
    (["--embeddings", "nowhere"], "embeddings must be an existing directory, got nowhere"),
    (["--public", "nowhere"], "embeddings must be an existing directory, got nowhere"),
    (["--honest-fraction", "2"], "honest_fraction must be in (0, 1], got 2"),
    (["--min-survivors", "4"], "one certainly honest user, got 0"),
    (["--method", "softmax", "--l2-reg", "0"], "l2_reg must be finite and > 0, got 0"),
    (["--scheme", "iid", "--users", "0"], "users must be in [1, 90]"),
    (["--scheme", "iid", "--users", "91"], "users must be in [1, 90]"),
    (["--users", "4"], "users must be left out for scheme 'own', got 4"),
    (["--scheme", "dirichlet", "--users", "4"], "concentration must be given"),
    (["--components", "9"], "components must be in [1, 5], got 9"),
    (["--num-classes", "2"], "num_classes must be 3"),
    (["--seed", "9" * 20], "seed must be in [0, 2^63), got 9999"),
    (["--seed", "-1"], "seed must be in [0, 2^63), got -1"),
    (["--delta", "1e-320"], "delta must be >= 1e-290"),
    (["--method", "admm-dual", "--iterations", "0"], "iterations must be >= 1, got 0"),
    (["--seed", "1", "--noise", "discrete"], "generator must be None for noise 'discrete'"),
]


@pytest.mark.parametrize("names", [5, None, ["a", "a", "b"], {"a": 1}])
def test_class_names_that_are_no_list_of_names(call, sets, tmp_path, names):
    (tmp_path / "private" / "meta.json").write_text(json.dumps({"class_names": names}))
    code, _, error = call("run", "--embeddings", sets[0], "--public", sets[1])
    assert code == 2
    assert error.count("\n") == 1
    assert "class_names must be a list of distinct names" in error


@pytest.mark.parametrize(("scheme", "suits"), [("iid", True), ("one-class", False)])
def test_users_made_by_label_are_a_simulation(call, sets, tmp_path, scheme: str, suits: bool):
    """A replaced record moves other records from user to user there: no promise covers that."""
    out = tmp_path / "out"
    common = ["run", "--embeddings", sets[0], "--public", sets[1], "--out", str(out)]
    assert call(*common, "--method", "class-sums", "--scheme", scheme, "--users", "4")[0] == 0
    report = json.loads((out / "report.json").read_text())
    assert report["suitable_for_release"] is suits
    assert report["noise"] == "discrete"
    assert ("users were given rows by their labels" in str(report)) is not suits


def test_options_of_a_transform_that_is_given_are_not_ignored(call, sets, tmp_path):
    PublicTransform.fit(EmbeddingSet.open(sets[1])).save(tmp_path / "t.safetensors")
    arguments = ["run", "--embeddings", sets[0], "--transform", str(tmp_path / "t.safetensors")]
    code, _, error = call(*arguments, "--components", "3")
    assert code == 2
    assert "must be left out with transform" in error
    assert call(*arguments)[0] == 0


SWEEP = ["sweep", "accuracy", "--seeds", "1", "--users", "4"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--users", "1000"], "users must be in [1, 90]"),
        (["--public", "narrow"], "public must have 5 columns as embeddings, got 4"),
    ],
)
def test_a_sweep_that_cannot_begin_writes_nothing(call, sets, tmp_path, change, message):
    narrow = EmbeddingSet.open(sets[1])
    EmbeddingSet(embeddings=narrow.embeddings[:, :4], labels=narrow.labels).save(
        tmp_path / "narrow"
    )
    before = sorted(tmp_path.rglob("*"))
    code, _, error = call(*SWEEP, "--embeddings", sets[0], "--public", sets[1], *change)
    assert code == 2
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input_is_one_line_and_writes_nothing(call, sets, tmp_path, change, message):
    before = sorted(tmp_path.rglob("*"))
    arguments = ["run", "--embeddings", sets[0], "--public", sets[1], "--out", "made", *change]
    code, printed, error = call(*arguments)
    assert code == 2
    assert printed == ""
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert message in error
    assert sorted(tmp_path.rglob("*")) == before


def test_a_directory_that_exists_is_refused_and_kept(call, sets, tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "note").write_text("mine")
    arguments = ["run", "--embeddings", sets[0], "--public", sets[1], "--out", "made"]
    code, _, error = call(*arguments)
    assert code == 2
    assert "must not exist (or pass --overwrite), got made" in error
    assert (tmp_path / "made" / "note").read_text() == "mine"
    assert call(*arguments, "--overwrite")[0] == 0
    assert not (tmp_path / "made" / "note").exists()


def test_a_place_that_cannot_be_written_is_found_before_noise_is_drawn(
    call, sets, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr("train_distributed.one_shot.release.ReleaseRequest.release", drawn.append)
    (tmp_path / "file").touch()
    private, public = sets
    out = str(tmp_path / "file" / "out")
    code, _, error = call("run", "--embeddings", private, "--public", public, "--out", out)
    assert (code, drawn) == (2, [])
    assert "file" in error


def test_the_public_set_must_not_be_the_private_one(call, sets):
    code, _, error = call("run", "--embeddings", sets[0], "--public", sets[0])
    assert code == 2
    assert "public must be another set than the one it is applied to" in error


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


def test_a_transform_of_unknown_origin_must_be_vouched_for(call, sets, tmp_path):
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


def test_classes_that_were_counted_must_be_declared(call, sets, tmp_path):
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

    What had been reserved for it counts: its noise was drawn.
    """
    before = sorted([*tmp_path.rglob("*"), tmp_path / "private.ledger"])

    def stop(*_: object) -> None:
        assert len(list(tmp_path.glob(".made.*.partial/*"))) == 2
        os.kill(os.getpid(), number)

    monkeypatch.setattr("train_distributed.one_shot.figure.draw_release", stop)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
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
