"""The main path runs with the core dependencies alone: what extras bring is not there."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Hides the named distributions and modules, then starts the program.
PROGRAM = """
import sys
from dataclasses import replace
from importlib import metadata

hidden, modules = map(set, (sys.argv[1].split(","), sys.argv[2].split(",")))


class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name in modules else self.finder.find_spec(name, path, target)


def from_name(name, real=metadata.Distribution.from_name):
    if name.lower().replace("_", "-") in hidden:
        raise metadata.PackageNotFoundError(name)
    return real(name)


sys.meta_path[:] = map(Hiding, sys.meta_path)
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


@pytest.fixture(scope="module")
def program():
    """Runs a command line where extras are hidden."""
    core, modules, hidden = needed(), set(), set()
    for module, names in packages_distributions().items():
        names = {plain(name) for name in names}
        if not names & core:
            modules.add(module)
            hidden |= names
    assert {"dp_accounting", "opacus", "starlette", "datasets"} <= modules
    assert "torch" not in modules

    def run(folder: Path, *arguments: object) -> str:
        words = [sys.executable, "-c", PROGRAM, ",".join(hidden), ",".join(modules)]
        done = subprocess.run(
            [*words, *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_demo_writes_its_table_and_picture(program, tmp_path: Path) -> None:
    """The first command of the README, smaller."""
    shown = program(tmp_path, "demo", "--seeds", 1, "--users", 10, "--epsilons", 3, "--out", "demo")
    assert "discriminant" in shown
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert written == {"accuracy.png", "accuracy_pixels.png", "results.json"}
