"""Commands as functions, and 150 calls that a program gets wrong: one line each."""

# pyright: reportArgumentType=false, reportCallIssue=false

import subprocess
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import embed
import heads
import pretrain
import train_distributed as td
from embed import EmbeddingSet, PublicTransform, add_constant_and_clip
from pretrain import build_encoder
from train_distributed import Privacy, PrivateClassifier, Release, accounting, release
from train_distributed.__main__ import ROOMS

ROWS, LABELS = np.eye(4), np.arange(4) % 2
META = {"class_names": ["a", "b"]}
SET = EmbeddingSet(embeddings=ROWS, labels=LABELS, users=np.arange(4), meta=META)
LONE = EmbeddingSet(embeddings=ROWS, labels=LABELS, meta=META)
PROMISE = Privacy(1.0, 1e-5)
RUN, REHEARSE = {"embeddings": "mine"}, {"public": "p", "users": 3, "rows_per_user": 2}
REHEARSE |= {"num_classes": 2}
WRONG = (TypeError, ValueError)  # the latter for text that is none of the choices
NEEDED = r"missing a required (keyword-only )?argument"  # in the words of Python

# function -> the options that it needs, and bad values of its options
TYPES: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (embed.embed_images, {"data": "x"}, {
        "data": 3, "resize": "32", "layout": "user", "splits": "train", "limit": 2.5,
        "skip_unreadable": 1, "overwrite": "no", "out": 7, "crop": "half", "batch_size": True,
        "test_share": "0.2", "class_names": (1, 2), "encoder": None, "dtype": np.float32,
    }),
    (embed.hold_out_rows, {"embeddings": "x", "share": 0.5}, {
        "embeddings": None, "share": "0.2", "by": "row", "seed": 1.5,
    }),
    (embed.concat_sets, {"sets": ("a", "b")}, {"sets": 3}),
    (embed.exclude_public, {"public": ("x",)}, {"public": 3, "embeddings": 4, "overwrite": None}),
    (embed.fit_transform, {"public": "x"}, {
        "public": None, "components": 1.5, "directions": "best", "whiten": "yes",
        "clip_norm": "1", "shrinkage": None,
    }),
    (embed.import_reference, {"source": "x"}, {"source": 1, "num_classes": "ten"}),
    (embed.plot_embeddings, {"embeddings": "x"}, {"rows": "all", "method": "umap", "seed": None}),
    (pretrain.pretrain_simclr, {"data": ("x",)}, {"data": (3,), "seed": "0", "config": {}}),
    (pretrain.convert_checkpoint, {"checkpoint": "x", "arch": "y"}, {"arch": 50}),
    (pretrain.probe_encoder, {"data": "x"}, {"data": ["x"], "l2_reg": "1", "baselines": 1}),
    (td.run, RUN, {
        "embeddings": 3, "epsilon": True, "delta": "1e-5", "users": "ten", "method": 3,
        "noise": "laplace", "seed": 1.0, "privacy": 1.0, "options": {"prior": "equal"},
        "transform_options": None, "num_classes": 2.5, "scheme": None, "components": "64",
        "l2_reg": "small", "epochs": 1.5, "prior": 3, "user_clip": True, "whiten": 0,
        "allow_delta": 1, "min_survivors": "all", "unit": "row", "group_size": 1.5,
        "honest_fraction": "half", "with_encoder": "yes", "ledger": False,
    }),
    (td.predict, {"model": "m"}, {
        "model": None, "data": 3, "resize": "32", "evaluate": "yes", "splits": (1,),
        "compute": "fast", "batch_size": 2.5, "device": 0,
    }),
    (td.evaluate, {"model": "m", "embeddings": "x"}, {
        "model": 1, "bins": 2.5, "confidence": "95", "sampling": "all", "training": 3,
        "epsilon": None, "overlap": True, "users": "1", "noise": None,
    }),
    (td.export, {"model": "m", "format": "onnx"}, {"format": "tf", "input_size": 32}),
    (td.card, {"model": "m"}, {"model": 3, "ledger": 1.5, "evaluation": []}),
    (td.rehearse, REHEARSE, {
        "users": None, "rows_per_user": 2.5, "num_classes": True, "epsilon": ("1",), "unit": "row",
        "delta": None, "like": 3, "text_encoder": 1,
    }),
    (td.account, {}, {"epsilon": "1", "delta": True, "compositions": 1.5}),
    (td.audit, {}, {"method": 1, "trials": 2.5, "confidence": "high"}),
    (td.demo, {}, {"users": 1.5, "epsilons": ("1",), "seeds": None, "components": True}),
    (td.sweep, {"experiment": "frontier"}, {"experiment": "nothing", "embeddings": 3}),
    (td.plot_sweep, {"results": "r"}, {"results": None}),
    (td.protect, {}, {"budget": "low"}),
    (td.show_ledger, {}, {"ledger": 3, "delta": "1e-5", "json": 1}),
    (td.reserve_epsilon, {"epsilon": 1.0, "delta": 1e-5}, {
        "epsilon": "1", "unit": "row", "compositions": None, "method": 1,
    }),
    (td.spend_epsilon, {"id": "x"}, {"id": 3}),
    (td.limit_epsilon, {"epsilon": 1.0, "delta": 1e-5}, {"raise_limit": 1, "epsilon": True}),
    (td.merge_ledgers, {"other": "o"}, {"other": 3}),
    (td.join_federation, {"folder": "f", "name": "n"}, {"rows": "many", "server": 1}),
    (td.init_federation, {"folder": "f", "parties": ("a",)}, {
        "parties": (3,), "protocol": "mpc", "hosts": 3, "sessions": True,
    }),
    (td.make_window, {"folder": "f", "aggregators": ("a",), "out": "o"}, {"hours": "1"}),
    (td.fit_head, {"data": "d", "out": "o", "num_classes": 2, "l2_reg": 1.0, "clip_norm": 1.0}, {
        "num_classes": "2", "l2_reg": True, "solver": "adam",
    }),
]  # fmt: skip

CALLS: list[tuple[Any, Any, str]] = [
    (lambda: td.run("x", colour=1), TypeError, r"'colour'; help\(run\)"),
    (lambda: td.run("x", epsilom=1), TypeError, "'epsilom', perhaps epsilon"),
    (lambda: embed.embed_images(), TypeError, NEEDED),
    (lambda: td.run(), TypeError, NEEDED),
    (lambda: td.run("x", embeddings="y"), TypeError, "multiple values"),
    (lambda: td.demo(users=0), ValueError, r"users must be in \[10, 2500\], got 0"),
    (lambda: td.demo(seeds=0), ValueError, "seeds must be >= 1, got 0"),
    (lambda: td.demo(epsilons=()), ValueError, "epsilons must be given"),
    (lambda: td.demo(components=0), ValueError, "components must be in"),
    (lambda: Privacy(True, 1e-5).validate(), TypeError, "epsilon .* got True"),
    (lambda: Privacy(1.0, "x").validate(), TypeError, "delta must be a number"),
    (lambda: Privacy(1.0, 1e-5, group_size=1.5).validate(), TypeError, "group_size"),
    (lambda: release("x", "svm", PROMISE), TypeError, "embeddings must be"),
    (lambda: release(SET, 3, PROMISE), TypeError, "method must be"),
    (lambda: release(SET, "svm", 1.0), TypeError, "privacy must be of type"),
    (lambda: release(SET, "svm", Privacy(True, 1e-5)), TypeError, "got True"),
    (lambda: release(LONE, "svm", PROMISE), ValueError, "users must be named"),
    (lambda: release(SET, "svm", Privacy(1.0, 0.25)), ValueError, "delta .* 1/4"),
    (lambda: EmbeddingSet(embeddings=[[1.0]], labels=LABELS), TypeError, "ndarray"),
    (lambda: EmbeddingSet(embeddings=ROWS, labels=None), TypeError, "labels"),
    (
        lambda: EmbeddingSet(embeddings=ROWS, labels=LABELS, meta={"class_names": ["a", "nan"]}),
        ValueError,
        "class_names must not hold a missing value, got 'nan'",
    ),
    (
        lambda: EmbeddingSet(
            embeddings=ROWS, labels=LABELS, meta={"class_names": [float("nan"), 1.0]}
        ),
        ValueError,
        "missing value, got nan",
    ),
    (
        lambda: EmbeddingSet(
            embeddings=ROWS, labels=LABELS, meta={"content_hash": "0"}
        ).content_hash(),
        ValueError,
        "embeddings must be those of the content_hash",
    ),
    (lambda: PublicTransform.fit("x"), TypeError, "public must be"),
    (lambda: PublicTransform.fit(ROWS, components="2"), TypeError, "components"),
    (lambda: add_constant_and_clip(ROWS, 1.0), TypeError, "x must be"),
    (lambda: add_constant_and_clip(torch.ones(1, 1), "1"), TypeError, "clip_norm"),
    (lambda: build_encoder(3), TypeError, "text"),
    (lambda: accounting.delta("1", 2.0), TypeError, "str"),
    (lambda: PrivateClassifier(True).fit(ROWS, LABELS), TypeError, "got True"),
    (lambda: PrivateClassifier().fit(ROWS, LABELS[:3]), ValueError, "samples"),
    (
        lambda: PrivateClassifier(classes=["a", "nan"]).fit(ROWS, ["a", "nan"] * 2),
        ValueError,
        "missing value",
    ),
    (lambda: PrivateClassifier(classes=[0, 1]).fit(ROWS, LABELS, [1]), ValueError, "samples"),
    (
        lambda: PrivateClassifier(classes=[0, 5]).fit(ROWS, LABELS),
        ValueError,
        "y must hold the classes",
    ),
    (
        lambda: PrivateClassifier(1.0, 0.3, classes=[0, 1]).fit(ROWS, LABELS),
        ValueError,
        "delta must be < 1/rows",
    ),
    (lambda: PrivateClassifier(transform=ROWS).fit(ROWS, LABELS), TypeError, "transform"),
    (lambda: PrivateClassifier(method=3).fit(ROWS, LABELS), TypeError, "method"),
    (
        lambda: PrivateClassifier(classes=[0, 1], options={"user_clip": 1.0}).fit(ROWS, LABELS),
        ValueError,
        "user_clip must be left out for a single user",
    ),
]


CASES = [
    *(
        (partial(call, **needed | {k: v}), WRONG, k)
        for call, needed, bad in TYPES
        for k, v in bad.items()
    ),
    *CALLS,
]


@pytest.mark.parametrize(("call", "kind", "says"), CASES, ids=[says for *_, says in CASES])
@pytest.mark.filterwarnings("ignore:classes were counted")
def test_a_bad_call_is_one_line(call: Any, kind: Any, says: str) -> None:
    with pytest.raises(kind, match=says) as raised:
        call()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_there_are_150() -> None:
    assert len(CASES) >= 150


def test_every_command_is_a_function_with_its_options() -> None:
    commands = {entry.load() for entry in _entries(ROOMS)}
    rooms = (embed, pretrain, td)
    made = [getattr(room, name) for room in rooms for name in room.__all__]
    found = {call.__doc__ for call in made if hasattr(call, "__signature__")}
    assert found == {command.__doc__ for command in commands}
    shown = signature(td.run)
    assert list(shown.parameters)[:2] == ["embeddings", "config"]
    assert shown.return_annotation is Path


def _entries(menu: Any) -> list[Any]:
    found = (
        [each for entry in menu.entries for each in _entries(entry)]
        if hasattr(menu, "entries")
        else [menu]
    )
    return found


@pytest.mark.parametrize("room", [embed, heads, pretrain, td], ids=lambda room: room.__name__)
def test_dir_shows_the_public_names_and_the_version(room: Any) -> None:
    assert set(room.__all__) | {"__version__"} <= set(dir(room))
    assert not [
        name for name in dir(room) if not name.startswith("__") and name not in room.__all__
    ]
    assert room.__version__ == td.__version__
    assert (Path(room.__file__).parent / "py.typed").exists()


def test_functions_return_what_the_next_one_takes(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    labels = np.arange(240) % 2
    rows = np.eye(2, 5)[labels] + 0.2 * rng.standard_normal((240, 5))
    split = np.repeat([0, 1], [200, 40])
    EmbeddingSet(
        embeddings=rows, labels=labels, users=np.arange(240) % 20, split=split, meta=META
    ).save(Path("mine"))
    EmbeddingSet(embeddings=rows[::-1] + 0.1, labels=labels).save(Path("public"))
    held = embed.hold_out_rows(embeddings=Path("mine"), share=0.2, out=Path("held"))
    fitted = embed.fit_transform(public=Path("public"), components=3, out=Path("fitted"))
    model = td.run(held, transform=fitted / "transform.safetensors", privacy=Privacy(3.0, 1e-4))
    again = td.run("held", public="public", epsilon=3, components=3, prior="equal", ledger="none")
    report = Release.load(again).report
    assert (report.epsilon, report["configuration"]["options"]["prior"]) == (3, "equal")
    read = Release.load(model).report["configuration"]["transform_options"]
    assert (read["components"], read["clip_quantile"], read["directions"]) == (3, 0.1, "principal")
    evaluated = td.evaluate(model=model, embeddings=held, privacy=Privacy(5.0, 1e-4))
    assert (evaluated / "evaluation.json").exists()
    assert td.card(model, evaluation=evaluated) == model
    assert (td.predict(model=model, embeddings=held) / "predictions.csv").exists()
    assert td.account(1.0, 1e-5)["noise_multiplier"] == pytest.approx(3.73, abs=0.01)
    assert "written" in capsys.readouterr().out


PROGRAM = """
from pathlib import Path

import numpy as np
from embed import EmbeddingSet, PublicTransform, embed_images
from train_distributed import PrivateClassifier, Privacy, Release, evaluate, release, run

private: Path = embed_images(data="pictures", layout="user-class", resize=32, out=Path("mine"))
data = EmbeddingSet.open(private)
transform = PublicTransform.fit(data, components=8)
model: Release = release(data, "discriminant", Privacy(1.0, 1e-5), transform=transform)
names: np.ndarray = model.predict(np.zeros((1, 8)), names=True)
written: Path = run(embeddings=private, public=Path("public"), privacy=Privacy(1.0, 1e-5))
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
