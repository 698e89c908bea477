"""The commands as a user meets them: output, refusals in one line, nothing half-written."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from safetensors import safe_open

from embed import EmbeddingSet, PublicTransform
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed import Privacy, release
from train_distributed.__main__ import MENU
from train_distributed.commands.exporting import _command
from train_distributed.commands.options import PrivateMethodName, jsonable
from train_distributed.commands.releasing import Releasing, Run, options_of
from train_distributed.ledger.ledger import Ledger
from train_distributed.released.numbers import rounded_up
from train_distributed.research.audit import worst_case

SETS = "--embeddings private --public public"
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


@pytest.fixture
def held(say, sets, no_pictures) -> None:
    """A set `held` with rows held out, and a `model` of the others."""
    say.done("embed hold-out --embeddings private --share 0.4 --out held")
    learn = "run --embeddings held --public public --epsilon 5 --out model"
    say.done(f"{learn} --method discriminant --sums 1")


def evaluation(out: str) -> dict:
    return json.loads(Path(out, "evaluation.json").read_text())


def test_a_model_is_evaluated_and_counted(say, held) -> None:
    given = "evaluate --embeddings held --model model --epsilon 2 --out"
    printed = say.done(f"{given} good")
    for words in ("accuracy", "balanced_accuracy", "expected_calibration_error", "recall of a"):
        assert words in printed
    report = evaluation("good")
    assert report["suitable_for_release"]
    assert report["rows"] > 0
    assert len(report["model"]) == 64
    assert report["ledger"]["epsilon_total"] == pytest.approx(5, rel=1e-6)  # the costlier part
    lines = Ledger(Path("held.ledger")).lines()
    assert [line.kind for line in lines] == ["reserve", "spend"] * 2
    say.refused(f"{given} good", "good")
    say.done(f"{given} both --overlap add --seed 1")
    assert evaluation("both")["ledger"]["epsilon_total"] > 5.3
    assert not evaluation("both")["suitable_for_release"]
    say.done(f"{given} third --ledger none --noise float")
    assert evaluation("third")["ledger"] == "none"


def test_a_model_is_shown_rows_of_any_prior(say, held) -> None:
    """By one evaluation of two priors, by predictions for each, and not where it has one alone."""
    Path("prior.json").write_text('{"a": 0.98, "b": 0.01, "c": 0.01}')
    learn = "run --embeddings held --public public --epsilon 1 --ledger none"
    for name, method in {"model2": "discriminant", "head": "softmax"}.items():
        say.done(f"{learn} --method {method} --out {name}")
    given = "evaluate --embeddings held --model model2 --ledger none"
    printed = say.done(f"{given} --prior both --out both")
    assert "accuracy, private" in printed
    assert "balanced_accuracy, equal" in printed
    say.done(f"{given} --prior prior.json --out given")
    both, alone = evaluation("both"), evaluation("given")
    assert (both["prior"], list(both["by_prior"])) == ("equal", ["equal", "private"])
    assert (alone["prior"], "by_prior" in alone) == ("given", False)
    assert both["epsilon"] == alone["epsilon"]
    assert both["sensitivity"] == pytest.approx(2**0.5 * alone["sensitivity"])
    assert both["noise_std"] == pytest.approx(2**0.5 * alone["noise_std"], rel=1e-3)
    say.done("card --model model2 --evaluation both")
    assert "| private |" in Path("model2/card.md").read_text()
    found = {}
    for prior, said in {"equal": "equal", "private": "private", "prior.json": "given"}.items():
        given = f"predict --embeddings held --model model2 --evaluate --out by_{said}"
        printed = say.done(f"{given} --prior {prior}")
        assert json.loads(Path(f"by_{said}", "metrics.json").read_text())["prior"] == said
        found[said] = int(printed.partition("predicted a")[2].split()[0])
    assert found["given"] > found["equal"]
    for line in ("predict --prior private", "evaluate --prior both", "evaluate --prior private"):
        say.refused(
            f"{line} --embeddings held --model head --out none",
            "prior must be the model's own, 'equal' (what it learned from carries",
        )
        assert not Path("none").exists()


def test_hold_out_says_why_users_hold_out_nothing(say, tmp_path: Path) -> None:
    meta = {"class_names": ["a", "b"]}
    users = np.repeat([0, 1, 2], [10, 2, 1])  # a fifth of two and of one row is none
    rows, labels = np.eye(13, 4), np.arange(13) % 2
    EmbeddingSet(embeddings=rows, labels=labels, users=users, meta=meta).save(tmp_path / "mine")
    printed = say.done("embed hold-out --embeddings mine --share 0.2 --out rows")
    counted, why = printed.splitlines()
    assert counted == "11 rows to train on, 2 held out, in rows"
    assert why.startswith("2 of 3 users hold out no row: the share of their rows rounds to none")
    _, printed, _ = say("embed hold-out --embeddings mine --share 0.4 --by user --out users")
    assert "1 users are held out with all of their rows" in printed


CARD = "card --model model"


@pytest.fixture
def model(sets, tmp_path) -> Path:
    """A released model."""
    released = release(EmbeddingSet.open(sets[0]), "discriminant", Privacy(1.0, 1e-5), sums=1)
    released.save(tmp_path / "model")
    return tmp_path / "model"


def change(model: Path, fields: dict) -> None:
    path = model / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_card_is_written_into_the_model_and_is_made_of_it_alone(call, model) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    printed = call.done(CARD)
    assert printed.count("written") == 2
    page, text = (model / name for name in ("card.html", "card.md"))
    assert "Suitable for release" in page.read_text()
    assert "discriminant" in text.read_text()
    assert {path.name for path in model.iterdir()} == {*before, page.name, text.name}
    assert all((model / name).read_bytes() == content for name, content in before.items())
    again = [path.read_bytes() for path in (page, text)]
    call.done(f"{CARD} --overwrite")
    assert [path.read_bytes() for path in (page, text)] == again


def test_a_card_that_exists_is_kept(call, model) -> None:
    (model / "card.md").write_text("mine")
    call.refused(CARD, "must not exist (or pass --overwrite)")
    assert (model / "card.md").read_text() == "mine"
    assert not (model / "card.html").exists()
    call.done(f"{CARD} --out elsewhere")
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == ["card.html", "card.md"]


def test_the_ledger_is_shown_with_its_total(call, model) -> None:
    ledger = Ledger.open(Path("other.ledger"))
    ledger.spend(ledger.reserve(GAUSSIAN))
    ledger.reserve(GAUSSIAN)
    call.done(f"{CARD} --ledger other.ledger")
    text = (model / "card.md").read_text()
    assert "holds 2 entries" in text
    total = rounded_up(ledger.total().epsilon(1e-5), 6)
    assert f"come to ε = {total} at δ = 1e-05 for one record" in text
    assert "reserved, no result known" in text
    assert ledger.state().head in text


def test_a_ledger_that_lacks_what_was_counted_is_refused(call, model) -> None:
    ledger = Ledger.open(Path("other.ledger"))
    ledger.reserve(GAUSSIAN)
    Path("copy").mkdir()
    shutil.copy(ledger.path, "copy")
    ledger.reserve(GAUSSIAN)
    call.refused(
        f"{CARD} --ledger copy/other.ledger",
        f"ledger must be {ledger.path.resolve()}, which counts for all copies",
    )
    noted = {"length": 1, "head": "00" * 32, "file": "x", "entry": "y", "unit": "record"}
    change(model, {"ledger": noted | {"epsilon_total": 1.0, "delta_total": 1e-5}})
    call.refused(
        f"{CARD} --ledger other.ledger",
        "ledger other.ledger must hold the 1 lines that a report has seen",
    )
    assert not list(model.glob("*card*"))


@pytest.mark.parametrize(
    "fields",
    [
        {"users": "many"},
        {"private": None, "epsilon": None},
        {"epsilon": "large"},
        {"test_metrics": {"rows": 3}},
        {"test_metrics": 7},
        {"neighbouring": None, "delta": [1]},
        {"encoding": {"encoder": "x"}},
        {"noise_multiplier": -1.0},
        {"delta": 0},
    ],
)
def test_a_report_that_somebody_has_changed_is_one_line(call, model, fields) -> None:
    change(model, fields)
    call.refused(CARD)
    assert not list(model.glob("*card*"))


@pytest.mark.parametrize(
    "typed",
    [
        "--method softmax --epsilon 0.25 --l2-reg 0.5 --solver sgd --components 9",
        "--user-clip 3.5 7 --sums 2 --rounds 3 --names cat 'polar bear'",
        "--unit user --group-size 2 --honest-fraction 0.75 --num-classes 4 --with-encoder",
        "--config chosen.json --epsilon 0.5 --allow-delta --with-encoder weights.safetensors",
        "simulate --scheme dirichlet --users 7 --concentration 0.5 --seed 3 --noise float",
        "rival non-private-svm --epsilon inf --users 9",
        "rival charter --epsilon 2 --bits 9 --constants paper",
    ],
)
def test_the_command_on_the_card_is_the_one_that_was_typed(typed: str) -> None:
    words = [*shlex.split(typed), "--embeddings", "my rows", "--public", "public"]
    words = words if words[0] in ("simulate", "rival") else ["run", *words]
    parsed = MENU.parse(words, "x")
    assert isinstance(parsed, Releasing)
    command = _command(jsonable(options_of(parsed)) | {"command": parsed.command})
    program, *again = shlex.split(command or "")
    assert program == "blind-averaging"
    assert MENU.parse(again, "x") == parsed


@pytest.mark.parametrize(
    "more",
    [
        "--public public --unit user --user-clip 2 9",
        "--public public --prior SHARES.json",
        "--public fitted/transform.safetensors",
    ],
)
def test_the_command_on_the_card_makes_a_model_of_the_same_settings(
    say, sets, no_pictures, more
) -> None:
    """What a public rule has filled in may be typed, but for what nobody can type."""
    Path("SHARES.json").write_text('{"a": 0.5, "b": 0.25, "c": 0.25}')
    say.done("embed fit-transform --public public --out fitted")
    given = "--embeddings private --epsilon 3.0 --ledger none --out model"
    say.done(f"run {given} {more}")
    kept = json.loads(Path("model/report.json").read_text())["configuration"]
    program, *again = shlex.split(_command(kept) or "")
    assert program == "blind-averaging"
    again[again.index("--out") + 1] = "again"
    say.done(*again)
    found = json.loads(Path("again/report.json").read_text())["configuration"]
    assert found == kept | {"out": "again"}


def test_files_elsewhere_are_called_by_name_alone_and_a_federation_has_no_command() -> None:
    configuration = jsonable(options_of(Run(Path("/somewhere/secret/rows"), public=Path("../p"))))
    command = _command(configuration)
    assert command == "blind-averaging run --embeddings rows --public p --epsilon 1.0 --delta 1e-05"
    assert _command(None) is None
