"""`card`, as somebody meets it who was given a model."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed import Privacy, release
from train_distributed.__main__ import MENU
from train_distributed.commands.exporting import _command
from train_distributed.commands.options import jsonable
from train_distributed.commands.releasing import Releasing, Run, options_of
from train_distributed.ledger.ledger import Ledger
from train_distributed.released.numbers import rounded_up


@pytest.fixture
def model(sets, tmp_path) -> Path:
    """A released model."""
    released = release(EmbeddingSet.open(sets[0]), "discriminant", Privacy(1.0, 1e-5), sums=1)
    released.save(tmp_path / "model")
    return tmp_path / "model"


def test_a_card_is_written_into_the_model_and_is_made_of_it_alone(call, model) -> None:
    before = {path.name: path.read_bytes() for path in model.iterdir()}
    code, printed, error = call("card", "--model", "model")
    assert (code, error) == (0, "")
    assert printed.count("written") == 2
    page, text = (model / name for name in ("card.html", "card.md"))
    assert "Suitable for release" in page.read_text()
    assert "discriminant" in text.read_text()
    assert {path.name for path in model.iterdir()} == {*before, page.name, text.name}
    assert all((model / name).read_bytes() == content for name, content in before.items())
    again = [path.read_bytes() for path in (page, text)]
    assert call("card", "--model", "model", "--overwrite")[0] == 0
    assert [path.read_bytes() for path in (page, text)] == again


def test_a_card_that_exists_is_kept(call, model) -> None:
    (model / "card.md").write_text("mine")
    code, _, error = call("card", "--model", "model")
    assert code == 2
    assert "must not exist (or pass --overwrite)" in error
    assert (model / "card.md").read_text() == "mine"
    assert not (model / "card.html").exists()
    assert call("card", "--model", "model", "--out", "elsewhere")[0] == 0
    assert sorted(path.name for path in Path("elsewhere").iterdir()) == ["card.html", "card.md"]


def test_the_ledger_is_shown_with_its_total(call, model, tmp_path) -> None:
    ledger = Ledger.open(tmp_path / "other.ledger")
    ledger.spend(ledger.reserve(GAUSSIAN))
    ledger.reserve(GAUSSIAN)
    assert call("card", "--model", "model", "--ledger", "other.ledger")[0] == 0
    text = (model / "card.md").read_text()
    assert "holds 2 entries" in text
    total = rounded_up(ledger.total().epsilon(1e-5), 6)
    assert f"come to ε = {total} at δ = 1e-05 for one record" in text
    assert "reserved, no result known" in text
    assert ledger.state().head in text


def test_a_ledger_in_which_the_release_is_not_is_refused(call, model, tmp_path) -> None:
    Ledger.open(tmp_path / "other.ledger").reserve(GAUSSIAN)
    path = model / "report.json"
    noted = {"length": 1, "head": "00" * 32, "file": "x", "entry": "y", "unit": "record"}
    totals = {"epsilon_total": 1.0, "delta_total": 1e-5}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"ledger": noted | totals}))
    code, _, error = call("card", "--model", "model", "--ledger", "other.ledger")
    assert code == 2
    assert "ledger other.ledger must hold the 1 lines that a report has seen" in error
    assert not list(model.glob("*card*"))


def test_a_copy_of_a_ledger_that_may_lack_entries_is_refused(call, model, tmp_path) -> None:
    ledger = Ledger.open(tmp_path / "other.ledger")
    ledger.reserve(GAUSSIAN)
    (tmp_path / "copy").mkdir()
    shutil.copy(ledger.path, tmp_path / "copy")
    ledger.reserve(GAUSSIAN)
    code, _, error = call("card", "--model", "model", "--ledger", "copy/other.ledger")
    assert code == 2
    assert f"ledger must be {ledger.path}, which counts for all copies" in error
    assert not list(model.glob("*card*"))


def test_more_classes_than_a_matrix_is_kept_of(call, tmp_path) -> None:
    labels = np.arange(303) % 101
    x = np.eye(101, dtype=np.float32)[labels]
    meta = {"class_names": [f"class {k}" for k in range(101)]}
    split = np.repeat([0, 1], [202, 101]).astype(np.uint8)
    rows = EmbeddingSet(embeddings=x, labels=labels, split=split, meta=meta)
    rows.save(tmp_path / "private")
    EmbeddingSet(embeddings=x + 0.1, labels=labels).save(tmp_path / "public")
    common = [
        "--embeddings",
        "private",
        "--public",
        "public",
        "--method",
        "discriminant",
        "--sums",
        "1",
    ]
    assert call("simulate", *common, "--users", "1", "--out", "model")[0] == 0
    assert call("card", "--model", "model")[0] == 0
    assert "NOT SUITABLE FOR RELEASE" in (tmp_path / "model" / "card.html").read_text()


@pytest.mark.parametrize(
    "change",
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
def test_a_report_that_somebody_has_changed_is_one_line(call, model, change) -> None:
    path = model / "report.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    code, printed, error = call("card", "--model", "model")
    assert (code, printed) == (2, "")
    assert error.count("\n") == 1
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
    assert command is not None
    program, *again = shlex.split(command)
    assert program == "blind-averaging"
    assert MENU.parse(again, "x") == parsed


@pytest.mark.parametrize(
    "more",
    [
        ("--method", "discriminant"),
        ("--unit", "user", "--user-clip", "2", "9"),
        ("--prior", "SHARES.json"),
        ("--public", "fitted/transform.safetensors"),
    ],
)
def test_the_command_on_the_card_makes_a_model_of_the_same_settings(
    say, sets, tmp_path, no_pictures, more
) -> None:
    """What a public rule has filled in may be typed, but for what nobody can type."""
    (tmp_path / "SHARES.json").write_text('{"a": 0.5, "b": 0.25, "c": 0.25}')
    assert say("embed", "fit-transform", "--public", "public", "--out", "fitted")[0] == 0
    source = () if "--public" in more else ("--public", "public")
    given = ("--embeddings", "private", *source, "--epsilon", "3.0", "--ledger", "none", *more)
    assert say("run", *given, "--out", "model")[0] == 0
    kept = json.loads((tmp_path / "model" / "report.json").read_text())["configuration"]
    command = _command(kept)
    assert command is not None
    program, *again = shlex.split(command)
    assert program == "blind-averaging"
    again[again.index("--out") + 1] = "again"
    assert say(*again)[0] == 0
    found = json.loads((tmp_path / "again" / "report.json").read_text())["configuration"]
    assert found == kept | {"out": "again"}


def test_files_elsewhere_are_called_by_name_alone() -> None:
    configuration = jsonable(options_of(Run(Path("/somewhere/secret/rows"), public=Path("../p"))))
    command = _command(configuration)
    assert command == "blind-averaging run --embeddings rows --public p --epsilon 1.0 --delta 1e-05"


def test_a_federation_has_no_such_command() -> None:
    assert _command(None) is None
