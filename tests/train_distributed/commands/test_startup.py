"""What a command loads before it works, and that core dependencies suffice for the main path."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

from embed import PublicTransform
from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from tests.embedding_sets import clusters
from train_distributed.__main__ import MENU
from train_distributed.commands.federation import Init
from train_distributed.commands.federation.collecting import MakeWindow

ROOT = Path(__file__).parents[3]
HEAVY = {
    *("torch", "torchvision", "timm", "safetensors", "matplotlib", "PIL", "sklearn", "scipy"),
    *("pandas", "mlxtend", "networkx", "dp_accounting", "opacus", "skimage"),
}
# All command lines run in one process, so what one loads is there for all after it: the first is
# the one that is named. After them, the modules of a room.
PROGRAM = """
import contextlib, importlib, io, json, pkgutil, runpy, sys

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
room = importlib.import_module("train_distributed.commands.federation")
for module in pkgutil.iter_modules(room.__path__, room.__name__ + "."):
    importlib.import_module(module.name)
print(json.dumps([*found, sorted(sys.modules)]))
"""


def loaded(typed: list[str]) -> list[list[str]]:
    """Per command line, the modules that it was the first to load; at last, all."""
    lines = json.dumps([line.split() for line in typed])
    command = [sys.executable, "-W", "error", "-c", PROGRAM, lines]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def heavy(names: list[str]) -> set[str]:
    return {name.partition(".")[0] for name in names} & HEAVY


def test_options_are_explained_and_epsilon_is_solved_without_a_heavy_package() -> None:
    typed = ["train_distributed account --help"]
    for menu in (PRETRAIN, EMBED, MENU):
        room = menu.room or "train_distributed"
        typed += [f"{room} {name} --help" for name in (*menu.commands, "")]
    typed += [f"train_distributed {name} --help" for name in ("federation", "ledger")]
    typed += ["heads --help", "heads fit --help"]
    typed += ["train_distributed account --epsilon 1 --delta 1e-5"]
    found = loaded(typed)
    assert len(typed) >= 25
    for line, names in zip(typed, found, strict=False):  # keys and graphs need scipy.special
        assert heavy(names) <= ({"scipy"} if "federation" in line or "1e-5" in line else set())
    ours = [name for name in found[0] if name.startswith("train_distributed.commands.")]
    assert ours == ["train_distributed.commands.counting"]  # of the command that was typed alone


def test_a_federation_s_commands_load_torch_for_rows_and_sums_alone(tmp_path: Path) -> None:
    parties = {"a": "--rows 12", "b": "--rows 12", "adder": "--server --hosts localhost"}
    join = "train_distributed federation join --folder"
    typed = [f"{join} {tmp_path}/{name} --name {name} {more}" for name, more in parties.items()]
    transform, fed = tmp_path / "public.safetensors", tmp_path / "fed"
    PublicTransform.fit(clusters(6, 2, 4)).save(transform)
    joined = loaded(typed)
    files = tuple(tmp_path / name / f"{name}.party.json" for name in parties)
    Init(fed, files, transform, ("localhost",), num_classes=2, protocol="shares").run()
    MakeWindow(fed, ("h:1", "h:2"), tmp_path / "window").run()  # computes noise and lengths
    status = "train_distributed federation status --folder"
    ran = loaded([f"{status} {fed}", f"{status} {tmp_path}/a"])
    assert heavy(ran[-1]) == {"scipy"}
    assert all(heavy(names) <= {"scipy"} for names in (*joined, *ran))
    words = f"train_distributed federation init --folder {tmp_path}/again --hosts localhost"
    words += f" --parties {' '.join(map(str, files))} --transform {transform} --num-classes 2"
    (init, _) = loaded([f"{words} --protocol shares"])
    assert heavy(init) <= {"torch", "safetensors", "scipy"}


# Hides the named distributions and modules, then starts the program.
CORE = """
import sys
from dataclasses import replace
from importlib import metadata

hidden, modules = map(set, (sys.argv[1].split(","), sys.argv[2].split(",")))


def from_name(name, real=metadata.Distribution.from_name):
    if name.lower().replace("_", "-") in hidden:
        raise metadata.PackageNotFoundError(name)
    return real(name)


sys.modules.update(dict.fromkeys(modules))  # whose import fails
metadata.Distribution.from_name = from_name

from pretrain import recipes
from train_distributed.__main__ import main

recipes.DIGITS = replace(recipes.DIGITS, epochs=1)  # seconds rather than a minute
sys.argv[:] = ["blind-averaging", *sys.argv[3:]]
sys.exit(main())
"""


def plain(name: str) -> str:
    return re.split(r"[ ;<>=!~\[(]", name)[0].lower().replace("_", "-")


def needed() -> set[str]:
    """Names of the core dependencies and of all that they need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found, left = {"blind-averaging"}, list(map(plain, project["dependencies"]))
    while left:
        if (name := left.pop()) in found:
            continue
        found.add(name)
        try:
            wanted = requires(name) or ()
        except PackageNotFoundError:  # of another platform
            continue
        left += [plain(each) for each in wanted if "extra ==" not in each]
    return found


def test_the_demo_writes_its_table_and_picture(tmp_path: Path) -> None:
    """The first command of the README, smaller, where extras are hidden."""
    core, modules, hidden = needed(), set(), set()
    for module, names in packages_distributions().items():
        names = {plain(name) for name in names}
        if not names & core:
            modules.add(module)
            hidden |= names
    assert {"dp_accounting", "opacus", "starlette", "datasets"} <= modules
    assert "torch" not in modules
    words = [sys.executable, "-c", CORE, ",".join(hidden), ",".join(modules), "demo"]
    words += ["--seeds", "1", "--users", "10", "--epsilons", "3", "--out", "demo"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "discriminant" in done.stdout
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert written == {"accuracy.png", "accuracy_pixels.png", "results.json"}
