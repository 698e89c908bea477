"""Commands as functions, and calls that a program gets wrong: one line each."""

# pyright: reportArgumentType=false, reportCallIssue=false

import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import embed.commands
import heads
import pretrain.commands
import train_distributed
import train_distributed.commands as td
from embed import EmbeddingSet, PublicTransform
from heads.__main__ import Fit
from pretrain.cli.menu import load
from pretrain.public import MOVED
from tests.embedding_sets import clusters
from tests.train_distributed.research.learning import learn
from train_distributed import Privacy, PrivateClassifier, Release, accounting, release
from train_distributed.__main__ import ROOMS
from train_distributed.commands.comparing import Rival
from train_distributed.research.protection.training import FederationOptions, head_federation
from train_distributed.simulation.rehearsal import Rehearsal, Sizes

ROWS, LABELS = np.eye(4), np.arange(4) % 2
META = {"class_names": ["a", "b"]}
SET = EmbeddingSet(embeddings=ROWS, labels=LABELS, users=np.arange(4), meta=META)
PROMISE = Privacy(1.0, 1e-5)
BARE = EmbeddingSet(embeddings=ROWS, labels=np.full(4, -1))
LABELLED = "must have labels to learn from, got a set of 4 rows without any"
SIZES = Sizes(users=1, rows_per_user=9, num_classes=2)
CLIENTS = FederationOptions(clients=1, rows=5, step=0.1, rounds=1)
TRANSFORM, CLIP = PublicTransform.identity(4), {"user_clip": 1.0}
NEEDED = r"missing a required (keyword-only )?argument"  # in the words of Python


def a_set(**meta: Any) -> EmbeddingSet:
    return EmbeddingSet(embeddings=ROWS, labels=LABELS, meta=meta)


def fit(*given: Any, y: Any = LABELS, weights: Any = None, **options: Any) -> PrivateClassifier:
    return PrivateClassifier(*given, **{"classes": [0, 1]} | options).fit(ROWS, y, weights)


CALLS: list[tuple[Any, Any, str]] = [
    (lambda: td.run("x", public="y", colour=1), TypeError, r"'colour'; help\(run\)"),
    (lambda: td.run("x", public="y", epsilom=1), TypeError, "unexpected .* argument 'epsilom'"),
    (lambda: embed.embed_images(), TypeError, NEEDED),
    (lambda: td.run(), TypeError, NEEDED),
    (lambda: td.run("x", embeddings="y"), TypeError, "multiple values"),
    (lambda: embed.embed_images(data="x", layout="user"), ValueError, "layout must be one of"),
    (
        lambda: embed.embed_images(data="x", class_names="cat"),
        ValueError,
        "must be a list or tuple",
    ),
    (lambda: embed.embed_images(data=Path("x.npz"), out="y"), ValueError, "x.npz"),
    (lambda: td.demo(users=0), ValueError, r"users must be in \[10, 2500\], got 0"),
    (lambda: td.demo(seeds=0), ValueError, "seeds must be >= 1, got 0"),
    (lambda: td.demo(epsilons=()), ValueError, "epsilons must be given"),
    (lambda: release(a_set(**META), "svm", PROMISE), ValueError, "users must be named"),
    (lambda: release(SET, "svm", Privacy(1.0, 0.25)), ValueError, "delta .* 1/4"),
    (lambda: a_set(class_names=["a", "nan"]), ValueError, "missing value, got 'nan'"),
    (lambda: a_set(class_names=[float("nan"), 1.0]), ValueError, "missing value, got nan"),
    (lambda: a_set(content_hash="0").content_hash(), ValueError, "must be those of the content_h"),
    (lambda: accounting.delta("1", 2.0), TypeError, "str"),
    (lambda: fit(classes=None, y=LABELS[:3]), ValueError, "samples"),
    (lambda: fit(classes=["a", "nan"], y=["a", "nan"] * 2), ValueError, "missing value"),
    (lambda: fit(weights=[1]), ValueError, "samples"),
    (lambda: fit(classes=[0, 5]), ValueError, "y must hold the classes"),
    (lambda: fit(1.0, 0.3), ValueError, "delta must be < 1/rows"),
    (lambda: fit(options=CLIP), ValueError, "user_clip must be left out for a single"),
    (lambda: fit(owners="few"), ValueError, "owners must be one of one, many, got 'few'"),
    (lambda: release(BARE, "svm", PROMISE, num_classes=3), ValueError, f"embeddings {LABELLED}"),
    (lambda: learn(BARE, "charter", PROMISE, num_classes=3), ValueError, f"embeddings {LABELLED}"),
    (lambda: Rehearsal.of(BARE, SIZES, PROMISE), ValueError, f"public {LABELLED}"),
    (lambda: head_federation(BARE, SET, TRANSFORM, CLIENTS), ValueError, f"embeddings {LABELLED}"),
]


@pytest.mark.parametrize(("call", "kind", "says"), CALLS, ids=[says for *_, says in CALLS])
@pytest.mark.filterwarnings("ignore:classes were counted")
def test_a_bad_call_is_one_line(call: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_every_command_is_a_function_with_its_options() -> None:
    commands = {load(home) for home in ROOMS.commands.values()}
    rivals = {command for command in commands if issubclass(command, Rival)}
    made = [getattr(room, name) for room in (embed.commands, td) for name in room.__all__]
    made += [pretrain.pretrain_simclr, pretrain.commands.convert, pretrain.commands.probe]
    found = {call.command for call in made if call is not td.rival}
    assert found == commands - rivals - {Fit}
    shown = signature(td.run)
    assert next(iter(shown.parameters)) == "embeddings"
    assert {"public", "epsilon", "sums", "l2_reg"} <= shown.parameters.keys()
    assert shown.return_annotation is Path


def test_its_docstring_has_every_option_in_the_words_of_the_help(capsys) -> None:
    for name in td.__all__:
        call, words = getattr(td, name), name.replace("_", " ").split()
        words = words if words[0] in td.GROUPS else [name]
        if call is td.rival:
            continue
        heads = ["--method=softmax"] if name in ("run", "simulate") else []
        with pytest.raises(SystemExit):
            ROOMS.parse([*words, *heads, "--help"], "x")
        shown = " ".join(re.sub("[^\\w]+", " ", capsys.readouterr().out).split())
        arguments = dict(re.findall(r"^    (\w+): (.*)$", call.__doc__, re.MULTILINE))
        nested = {each.name for each in fields(call.command) if is_dataclass(each.type)}
        assert arguments.keys() == signature(call).parameters.keys()
        for option in arguments.keys() - nested:
            said = " ".join(re.sub("[^\\w]+", " ", arguments[option]).split())
            assert said in shown, (name, option)


def test_a_name_that_has_moved_says_where_it_is() -> None:
    for room, names in MOVED.items():
        for name, now in names.items():
            with pytest.raises(ImportError, match=f"^{room}.{name} is now {now}$"):
                exec(f"from {room} import {name}")
            module, _, found = now.partition(",")[0].rpartition(".")
            assert callable(getattr(import_module(module), found))


@pytest.mark.parametrize(
    "room", [embed, heads, pretrain, train_distributed], ids=lambda room: room.__name__
)
def test_dir_shows_the_public_names_and_the_version(room: Any) -> None:
    assert "__version__" in dir(room)
    assert {name for name in dir(room) if not name.startswith("__")} == {
        name for name in room.__all__ if not name.startswith("__")
    }
    assert room.__version__ == train_distributed.__version__
    assert (Path(room.__file__).parent / "py.typed").exists()


def test_functions_return_what_the_next_one_takes(
    tmp_path: Path, monkeypatch, capsys, no_pictures
) -> None:
    monkeypatch.chdir(tmp_path)
    clusters(240, 2, 5, scale=1, noise=0.2, test=40, users=20).save(Path("mine"))
    clusters(240, 2, 5, scale=1, noise=0.2, seed=1).save(Path("public"))
    held = embed.commands.hold_out(embeddings=Path("mine"), share=0.2, out=Path("held"))
    fitted = embed.fit_transform(public=Path("public"), components=3, out=Path("fitted"))
    model = td.run(held, public=fitted / "transform.safetensors", epsilon=3.0, delta=1e-4)
    again = td.run("held", public="public", epsilon=3, components=3, prior="equal", ledger="none")
    report = Release.load(again).report
    assert (report.epsilon, report["configuration"]["options"]["prior"]) == (3, "equal")
    evaluated = td.evaluate(model=model, embeddings=held, epsilon=5.0, delta=1e-4)
    assert (evaluated / "evaluation.json").exists()
    assert td.card(model, evaluation=evaluated) == model
    assert (td.predict(model=model, embeddings=held) / "predictions.csv").exists()
    assert td.account(epsilon=1.0, delta=1e-5)["noise_multiplier"] == pytest.approx(3.73, abs=0.01)
    assert "written" in capsys.readouterr().out


PROGRAM = """
from pathlib import Path

import numpy as np
from embed import EmbeddingSet, PublicTransform, embed_images
from train_distributed import PrivateClassifier, Privacy, Release, release
from train_distributed.commands import evaluate, run

private: Path = embed_images(data="pictures", layout="user-class", resize=32, out=Path("mine"))
data = EmbeddingSet.open(private)
transform = PublicTransform.fit(data, components=8)
model: Release = release(data, "discriminant", Privacy(1.0, 1e-5), transform=transform)
names: np.ndarray = model.predict(np.zeros((1, 8)), names=True)
written: Path = run(embeddings=private, public=Path("public"), epsilon=1.0)
report: Path = evaluate(model=written, embeddings=private, bins=5)
fitted = PrivateClassifier(1.0, 1e-5, transform=transform).fit(np.eye(2), [0, 1])
"""


@pytest.mark.slow
def test_a_program_with_the_public_names_is_typed_strictly(tmp_path: Path) -> None:
    def checked(text: str) -> str:
        (tmp_path / "program.py").write_text(text)
        command = [sys.executable, "-m", "mypy", "--strict", "program.py"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout

    assert checked(PROGRAM).startswith("Success: no issues found")
    wrong = PROGRAM + "run(embeddings=3)\nfrom train_distributed import nonsense\n"
    found = checked(wrong)
    assert "[arg-type]" in found
    assert "[attr-defined]" in found
