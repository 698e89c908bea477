"""`card`, as somebody meets it who was given a model."""

import json
import shlex
import shutil
from pathlib import Path

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
