"""What a command loads before it works: options are explained and ε is solved without torch."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embed import EmbeddingSet, PublicTransform
from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from train_distributed.__main__ import MENU
from train_distributed.commands.federation import Init
from train_distributed.commands.federation.collecting import MakeWindow

ROOT = Path(__file__).parents[3]
HEAVY = [
    *("torch", "torchvision", "timm", "safetensors", "matplotlib", "PIL", "sklearn", "scipy"),
    *("pandas", "mlxtend", "networkx", "dp_accounting", "opacus", "skimage"),
]

SOLVE = ("train_distributed", "account", "--epsilon", "1", "--delta", "1e-5")

# All command lines run in one process, so what one loads is there for all after it: the first is
# the one that is named.
PROGRAM = """
import contextlib, io, json, runpy, sys

found, before = [], set(sys.modules)
for module, *arguments in json.loads(sys.argv[1]):
    sys.argv = [module, *arguments]
    for name in ("pretrain", "embed", "heads", "train_distributed"):
        sys.modules.pop(name + ".__main__", None)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as stop:
            assert not stop.code, (module, arguments, stop.code)
    assert said.getvalue()
    found.append(sorted(set(sys.modules) - before))
    before |= set(sys.modules)
print(json.dumps(found))
"""


FEDERATION = """
import pkgutil, sys

import train_distributed.commands.federation as room

for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
    __import__(module.name)
print(*sys.modules)
"""


def _run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _helped() -> list[tuple[str, ...]]:
    """Every command line that explains options, `account` first."""
    typed = [("train_distributed", "account", "--help")]
    for menu in (PRETRAIN, EMBED, MENU):
        room = menu.room or "train_distributed"
        typed += [(room, *name.split(), "--help") for name in menu.commands]
        typed += [(room, "--help")]
    typed += [("train_distributed", name, "--help") for name in ("federation", "ledger")]
    typed += [("heads", "--help"), ("heads", "fit", "--help")]
    return list(dict.fromkeys(typed))


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, ...], list[str]]:
    """Per command line, the modules that it was the first to load."""
    typed = [*_helped(), SOLVE]
    return dict(zip(typed, json.loads(_run(PROGRAM, json.dumps(typed))), strict=True))


def _heavy(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & set(HEAVY)


def test_no_command_loads_a_heavy_package_to_explain_its_options(loaded) -> None:
    helped = {line: _heavy(names) for line, names in loaded.items() if line[-1] == "--help"}
    assert len(helped) >= 25
    for line, heavy in helped.items():  # keys and graphs of a federation need scipy.special
        assert heavy <= ({"scipy"} if "federation" in line else set()), line


def test_a_privacy_curve_is_solved_without_torch(loaded) -> None:
    assert _heavy(loaded[SOLVE]) <= {"scipy"}


def test_only_the_command_that_was_typed_is_loaded(loaded) -> None:
    names = loaded["train_distributed", "account", "--help"]
    ours = [name for name in names if name.startswith("train_distributed.commands.")]
    assert ours == ["train_distributed.commands.counting"]


def test_a_federation_s_commands_load_torch_for_rows_and_sums_alone(tmp_path: Path) -> None:
    parties = []
    for name, role in (("a", ()), ("b", ()), ("adder", ("--server", "--hosts", "localhost"))):
        rows = () if role else ("--rows", "12")
        line = ("join", "--folder", tmp_path / name, "--name", name, *rows, *role)
        parties.append(("train_distributed", "federation", *map(str, line)))
    rows = EmbeddingSet(
        embeddings=np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32),
        labels=np.arange(6) % 2,
        split=np.zeros(6, np.int8),
        meta={"class_names": ["a", "b"]},
    )
    PublicTransform.fit(rows).save(tmp_path / "public.safetensors")
    fed = tmp_path / "fed"
    after: list[tuple[str | Path, ...]] = [
        ("status", "--folder", folder) for folder in (fed, tmp_path / "a")
    ]
    joined = json.loads(_run(PROGRAM, json.dumps(parties)))
    Init(
        fed,
        tuple(tmp_path / name / f"{name}.party.json" for name in ("a", "b", "adder")),
        tmp_path / "public.safetensors",
        ("localhost",),
        num_classes=2,
        protocol="shares",
    ).run()
    MakeWindow(fed, ("h:1", "h:2"), tmp_path / "window").run()  # computes noise and lengths
    typed = [("train_distributed", "federation", *map(str, line)) for line in after]
    ran = json.loads(_run(PROGRAM, json.dumps(typed)))
    assert _heavy(_run(FEDERATION).split()) == {"scipy"}
    assert all(_heavy(names) <= {"scipy"} for names in (*joined, *ran))
