"""The commands as a user meets them: output, refusals in one line, nothing half-written."""

import json
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from safetensors import safe_open

from embed import EmbeddingSet, PublicTransform
from embed.hold_out import random_keys, with_held_out
from tests.embedding_sets import clusters
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed import Privacy, release
from train_distributed.__main__ import MENU
from train_distributed.commands.exporting import _command
from train_distributed.commands.options import PrivateMethodName, jsonable
from train_distributed.commands.releasing import Releasing, Run, options_of
from train_distributed.ledger.ledger import Ledger
from train_distributed.one_shot.model import Release
from train_distributed.released.numbers import rounded_up
from train_distributed.research.audit import worst_case

SETS = "--embeddings private --public public"
pytestmark = pytest.mark.usefixtures("sets")


def report(out: str) -> dict:
    return json.loads(Path(out, "report.json").read_text())


def test_run_writes_model_report_and_figure(call):
    printed = call.done(f"run {SETS} --epsilon 3 --out out")
    for words in ("replace one record", "\nmajority_baseline      0.333", "\nauroc "):
        assert words in printed
    names = {"confusion.png", "model.safetensors", "privacy.png", "report.json"}
    assert {path.name for path in Path("out").iterdir()} == names
    found = report("out")
    assert (found["epsilon"], found["noise"], found["users"]) == (3, "discrete", 8)
    assert found["suitable_for_release"] is True
    assert found["configuration"]["method"] == "discriminant"
    call.done(f"rival non-private-svm {SETS} --epsilon inf --out bare")
    assert report("bare")["suitable_for_release"] is False
    call.done(f"rival admm-dual {SETS} --epsilon 3 --seed 0 --out many")
    assert {path.name for path in Path("many").iterdir()} == names


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
    given = "--public public --method discriminant --sums 1 --users 3"
    assert "users                  3" in call.done(f"simulate --embeddings nobody {given}")
    assert "users                  1" in run.done("--embeddings owned --honest-fraction 1")


@pytest.mark.parametrize("part", [slice(None), slice(None, None, -1), slice(3, 90, 8), None])
def test_a_transform_that_has_seen_private_rows_is_refused(call, tmp_path, part):
    """The whole set, the set backwards, one user's rows; or that does not say what it has seen."""
    line, seen = "run --embeddings private --public t", "transform must not have seen private rows"
    if part is None:
        fitted = PublicTransform.fit(EmbeddingSet.open("public"))
        PublicTransform.from_tensors(fitted.tensors()).save(Path("t"))
        seen = "transform must say which rows it has seen for discrete noise"
    else:
        PublicTransform.fit(EmbeddingSet.open("private").embeddings[part].copy()).save(Path("t"))
    before = sorted(tmp_path.rglob("*"))
    call.refused(line, seen)
    assert sorted(tmp_path.rglob("*")) == before


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
    for words in ("balanced_accuracy", "expected_calibration_error", "recall of a"):
        assert words in printed
    few, whole = (
        say(f"embed hold-out --embeddings private --out {share[:4]} --share {share}")[1]
        for share in ("0.043", "0.4 --by user")
    )
    assert "of 8 users hold out no row" in few
    assert "users are held out with all of their rows" in whole
    report = evaluation("good")
    assert report["suitable_for_release"]
    assert (report["rows"] > 0, len(report["model"])) == (True, 64)
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
    assert "balanced_accuracy, equal" in say.done(f"{given} --prior both --out both")
    assert list(evaluation("both")["by_prior"]) == ["equal", "private"]
    say.done(f"{given} --prior prior.json --out given")
    assert evaluation("given")["prior"] == "given"
    say.done("card --model model2 --evaluation both")
    assert "| private |" in Path("model2/card.md").read_text()
    found = {}
    for prior, said in {"equal": "equal", "private": "private", "prior.json": "given"}.items():
        given = f"predict --embeddings held --model model2 --evaluate --out by_{said}"
        printed = say.done(f"{given} --prior {prior}")
        assert json.loads(Path(f"by_{said}", "metrics.json").read_text())["prior"] == said
        found[said] = int(printed.partition("predicted a")[2].split()[0])
    assert found["given"] > found["equal"]
    own = "prior must be the model's own, 'equal' (what it learned from carries"
    for line in ("predict --prior private", "evaluate --prior both", "evaluate --prior private"):
        say.refused(f"{line} --embeddings held --model head --out none", own)
        assert not Path("none").exists()


CARD = "card --model model"


@pytest.fixture
def model(sets, tmp_path) -> Path:
    released = release(EmbeddingSet.open(sets[0]), "discriminant", Privacy(1.0, 1e-5), sums=1)
    released.save(tmp_path / "model")
    return tmp_path / "model"


def change(model: Path, fields: dict) -> None:
    path = model / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_a_card_is_written_into_the_model_and_is_made_of_it_alone(call, model) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    call.done(CARD)
    page, text = (model / name for name in ("card.html", "card.md"))
    assert "Suitable for release" in page.read_text()
    assert {path.name for path in model.iterdir()} == {*before, page.name, text.name}
    assert all((model / name).read_bytes() == content for name, content in before.items())
    again = [path.read_bytes() for path in (page, text)]
    call.done(f"{CARD} --overwrite")
    assert [path.read_bytes() for path in (page, text)] == again
    page.unlink()
    text.write_text("mine")
    call.refused(CARD, "must not exist (or pass --overwrite)")
    assert text.read_text() == "mine"
    assert not page.exists()
    call.done(f"{CARD} --out elsewhere")
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == [page.name, text.name]


def test_a_ledger_is_shown_with_its_total_unless_it_lacks_what_was_counted(call, model) -> None:
    ledger = Ledger.open(Path("other.ledger"))
    ledger.spend(ledger.reserve(GAUSSIAN))
    Path("copy").mkdir()
    shutil.copy(ledger.path, "copy")
    ledger.reserve(GAUSSIAN)
    call.done(f"{CARD} --ledger other.ledger")
    text = (model / "card.md").read_text()
    total = rounded_up(ledger.total().epsilon(1e-5), 6)
    said = f"come to ε = {total} at δ = 1e-05 for one record"
    for words in ("holds 2 entries", said, "reserved, no result known", ledger.state().head):
        assert words in text
    original = f"ledger must be {ledger.path.resolve()}, which counts for all copies"
    call.refused(f"{CARD} --ledger copy/other.ledger --overwrite", original)
    noted = {"length": 1, "head": "00" * 32, "file": "x", "entry": "y", "unit": "record"}
    change(model, {"ledger": noted | {"epsilon_total": 1.0, "delta_total": 1e-5}})
    lacks = "ledger other.ledger must hold the 1 lines that a report has seen"
    call.refused(f"{CARD} --ledger other.ledger --overwrite", lacks)
    assert (model / "card.md").read_text() == text


@pytest.mark.parametrize(
    "fields",
    [
        *({"users": "many"}, {"private": None, "epsilon": None}, {"epsilon": "large"}),
        *({"test_metrics": {"rows": 3}}, {"test_metrics": 7}, {"noise_multiplier": -1.0}),
        *({"neighbouring": None, "delta": [1]}, {"encoding": {"encoder": "x"}}, {"delta": 0}),
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


def test_files_elsewhere_are_called_by_name_alone_and_a_federation_has_no_command() -> None:
    configuration = jsonable(options_of(Run(Path("/somewhere/secret/rows"), public=Path("../p"))))
    command = _command(configuration)
    assert command == "blind-averaging run --embeddings rows --public p --epsilon 1.0 --delta 1e-05"
    assert _command(None) is None


@pytest.mark.parametrize("more", ["--unit user --user-clip 2 9", "--prior SHARES.json", ""])
def test_the_command_on_the_card_makes_a_model_of_the_same_settings(say, no_pictures, more) -> None:
    """What a public rule has filled in may be typed, but for what nobody can type."""
    Path("SHARES.json").write_text('{"a": 0.5, "b": 0.25, "c": 0.25}')
    say.done("embed fit-transform --public public --out fitted")
    public = "public" if more else "fitted/transform.safetensors"
    given = f"--embeddings private --public {public} --epsilon 3.0 --ledger none"
    say.done(f"run {given} {more} --out model")
    kept = report("model")["configuration"]
    _, *again = shlex.split(_command(kept) or "")
    again[again.index("--out") + 1] = "again"
    say.done(*again)
    assert report("again")["configuration"] == kept | {"out": "again"}


# What may differ is listed, with the reason why it tells nothing that the promise does not cover;
# docs/promises.md has the same list.
TRAINED = ("discriminant", "softmax", "svm", "logistic")
SALTED = "a hash over a secret salt of the ledger"
SUM = "read off the noised sum"
CLEAR = "accuracy on test rows, which no promise covers, of the released model"
PUBLIC = {
    **dict.fromkeys(("ledger.entry", "ledger.head"), SALTED),
    **dict.fromkeys(("class_prior", "temperature", "common_share"), SUM),
    **dict.fromkeys(("test_accuracy", "test_accuracy_per_class", "test_metrics"), CLEAR),
    # of evaluation.json
    **dict.fromkeys(("accuracy", "balanced_accuracy", "majority_baseline"), SUM),
    **dict.fromkeys(("majority_class", "warnings", "recall", "confusion", "bins"), SUM),
    "expected_calibration_error": SUM,
    "model": "SHA-256 of the released model",
}
OF_THE_SUM = {"model.safetensors", "privacy.png", "confusion.png"}  # and pictures of these numbers


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """Two sets that differ in one row and its label, in folders that have the same names."""
    first, keys = clusters(180, 3, 5, test=30, users=8), random_keys(180)
    x, labels = np.array(first.embeddings), first.labels.copy()
    public = EmbeddingSet(embeddings=x[::-1] + 0.01, labels=first.labels)
    x[0], labels[0] = 1e6, 2  # of the training rows, or of those that are held out
    second = replace(first, embeddings=x, labels=labels)
    for name, rows in {"first": first, "second": second}.items():
        (tmp_path / name).mkdir()
        with_held_out(rows, 0.2, keys=keys).save(tmp_path / name / "private")
        public.save(tmp_path / name / "public")
    return tmp_path / "first", tmp_path / "second"


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """Every number and word of a JSON object by its place."""
    if isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, f"{at}.{name}".strip("."))
    else:
        yield at, value


def unlisted(first: Path, second: Path) -> list[str]:
    """Places in which two directories differ that are not listed as public."""
    names = [{path.name for path in folder.iterdir()} for folder in (first, second)]
    assert names[0] == names[1]
    found = []
    for name in names[0] - OF_THE_SUM:
        texts = [(folder / name).read_text() for folder in (first, second)]
        told = [dict(leaves(json.loads(text))) for text in texts]
        places = told[0].keys() | told[1].keys()
        differ = [at for at in places if told[0].get(at) != told[1].get(at)]
        found += [at for at in differ if not {at, at.partition(".")[0]} & PUBLIC.keys()]
    return found


@pytest.mark.parametrize("method", TRAINED)
@pytest.mark.usefixtures("no_pictures")
def test_nothing_but_the_sum_and_what_is_listed_differs(say, monkeypatch, pair, method) -> None:
    """Every byte that commands write about two sets that differ in one record."""
    promise = "--embeddings private --epsilon 0.5 --delta 1e-5"
    for folder in pair:
        monkeypatch.chdir(folder)
        say.done(f"run {promise} --public public --method {method} --out model")
        for overlap in ("refuse", "add"):
            say.done(f"evaluate {promise} --model model --overlap {overlap} --out {overlap}")
    for name in ("model", "refuse", "add"):
        assert unlisted(*(folder / name for folder in pair)) == []


@pytest.mark.parametrize("rows", [1, 50, 1023, 1024, 1025])
def test_scores_stay_the_same_bits_wherever_a_row_is(rows: int) -> None:
    draw = torch.Generator().manual_seed(rows)
    transform = PublicTransform.fit(torch.randn(300, 96, generator=draw), components=33)
    release = Release(torch.randn(34, 7, generator=draw).double(), transform, tuple("abcdefg"))
    x = torch.randn(rows + 3, 96, generator=draw)
    order = torch.randperm(len(x), generator=draw)
    for function in (release.scores, release.predict_proba):
        made = function(x)
        assert torch.equal(function(x[order]), made[order])
        assert torch.equal(function(x[3:]), made[3:])
