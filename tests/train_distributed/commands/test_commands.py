"""The commands as a user meets them: output, refusals in one line, nothing half-written."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors import safe_open

from embed import EmbeddingSet, PublicTransform
from train_distributed.commands.options import PrivateMethodName
from train_distributed.research.audit import worst_case

SETS = "--embeddings private --public public"
ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.usefixtures("sets")


def report(out: str) -> dict:
    return json.loads(Path(out, "report.json").read_text())


def test_run_writes_model_report_and_figure(call):
    printed = call.done(f"run {SETS} --epsilon 3 --out out")
    assert "replace one record" in printed
    for name in ("majority_baseline      0.333", "balanced_accuracy ", "macro_f1 ", "auroc "):
        assert f"\n{name}" in printed
    names = {"confusion.png", "model.safetensors", "privacy.png", "report.json"}
    assert {path.name for path in Path("out").iterdir()} == names
    found = report("out")
    assert (found["epsilon"], found["noise"], found["users"]) == (3, "discrete", 8)
    assert found["suitable_for_release"] is True
    assert found["configuration"]["method"] == "discriminant"


def test_a_rival_writes_the_same_files_and_says_that_they_are_not_for_release(call):
    call.done(f"rival non-private-svm {SETS} --epsilon inf --out out")
    found = report("out")
    assert found["configuration"]["method"] == "non-private-svm"
    assert found["suitable_for_release"] is False
    assert {"test_accuracy", "epsilon", "delta", "rounds", "bytes_per_user"} <= found.keys()
    assert found["simulation_only"]["seconds"] > 0


@pytest.mark.parametrize("method", ["discriminant", "softmax"])
def test_a_prior_from_a_file_is_in_report_and_model(call, method, no_pictures):
    Path("prior.json").write_text('{"c": 0.5, "a": 0.2, "b": 0.3}')
    call.done(f"run {SETS} --method {method} --prior prior.json --out out")
    found = report("out")
    assert found["configuration"]["options"]["prior"] == [0.2, 0.3, 0.5]
    assert (found["prior"], found["class_prior"]) == ("given", {"a": 0.2, "b": 0.3, "c": 0.5})
    with safe_open("out/model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["prior"]) == [0.2, 0.3, 0.5]


@pytest.mark.parametrize(("scheme", "by_label"), [("iid", False), ("one-class", True)])
def test_users_made_by_label_are_said_to_be(call, scheme: str, by_label: bool, no_pictures):
    """A replaced record moves other records from user to user there: no promise covers that."""
    given = f"--noise discrete --method discriminant --sums 1 --scheme {scheme} --users 4"
    call.done(f"simulate {SETS} {given} --out out")
    found = report("out")
    assert (found["suitable_for_release"], found["noise"]) == (False, "discrete")
    assert "a simulation, by the command simulate" in found["unsuitable_because"]
    assert ("users were given rows by their labels" in str(found)) is by_label


def test_users_that_nobody_names_may_be_made_up_or_be_one(run, call):
    private = EmbeddingSet.open("private")
    replace(private, users=None).save(Path("nobody"))
    replace(private, users=np.zeros(len(private), np.int64)).save(Path("owned"))
    given = "--embeddings nobody --public public --method discriminant --sums 1 --users 3"
    printed = call.done(f"simulate {given}")
    assert "users                  3" in printed
    printed = run.done("--embeddings owned --honest-fraction 1")
    assert "users                  1" in printed


@pytest.mark.parametrize("part", [slice(None), slice(None, None, -1), slice(3, 90, 8)])
def test_a_transform_that_has_seen_private_rows_is_refused(call, tmp_path, part):
    """The whole set, the set backwards, one user's rows."""
    PublicTransform.fit(EmbeddingSet.open("private").embeddings[part].copy()).save(Path("t"))
    before = sorted(tmp_path.rglob("*"))
    call.refused("run --embeddings private --public t", "transform must not have seen private rows")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_transform_of_unknown_origin_is_refused(call):
    fitted = PublicTransform.fit(EmbeddingSet.open("public"))
    PublicTransform.from_tensors(fitted.tensors()).save(Path("t"))
    call.refused(
        "run --embeddings private --public t",
        "transform must say which rows it has seen for discrete noise",
    )


def test_classes_that_were_counted_must_be_declared(call, no_pictures):
    path = Path("private", "meta.json")
    counted = {"class_names": ["0", "1", "2"], "classes": "inferred"}
    path.write_text(json.dumps(json.loads(path.read_text()) | counted))
    call.refused(f"run {SETS}", "num_classes must be given for discrete noise")
    call.done(f"run {SETS} --num-classes 3")
    assert "counted from the private labels" in call(f"run {SETS} --seed 1")[1]


def test_the_module_runs_as_a_program():
    command = [sys.executable, "-m", "train_distributed", "account", "--epsilon", "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: exactly two of epsilon, delta, noise_multiplier")


METHODS = [  # dp-fl takes as long as all others together
    pytest.param(each, marks=pytest.mark.slow) if each == "dp-fl" else each
    for each in get_args(PrivateMethodName)
]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_that_audit_offers_is_attacked(call, monkeypatch, method: str):
    """Without another option."""
    monkeypatch.setattr(worst_case, "DEGREES", (0, 180))  # 3 pairs of data sets, not 25
    printed = call.done(f"audit --method {method} --trials 16 --out made")
    assert "0 of 1 promises broken" in printed
    (audited,) = json.loads(Path("made/audit.json").read_text())["audits"]
    assert audited["method"] == method
    assert audited["claim"]["epsilon"] <= 3.0
