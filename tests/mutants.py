"""Faults of one line each, and the tests that find them: `python tests/mutants.py [--only NAME]`.

The list is tests/mutants.toml. All tests named there must pass in a copy of the tree. Then every
fault is planted in it, and the tests named beside it are run; it is killed when they fail, by an
assertion and not by an import.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("pretrain", "embed", "heads", "train_distributed", "tests", "pyproject.toml")
TIMEOUT = 600  # seconds of one run of tests
FAILED = 1  # pytest's exit code where tests ran and failed; others mean that they did not run


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    file: str  # below the root
    old: str  # occurs exactly once
    new: str
    killers: tuple[str, ...]  # pytest node ids; one that fails is enough


def read(path: Path = ROOT / "tests" / "mutants.toml") -> list[Mutant]:
    entries = tomllib.loads(path.read_text())["mutant"]
    return [Mutant(**entry | {"killers": tuple(entry["killers"])}) for entry in entries]


def planted(mutant: Mutant, root: Path = ROOT) -> str:
    """The text of the file with the fault in it.

    Raises:
        ValueError: the old text does not occur exactly once, or nothing changes.
    """
    text = (root / mutant.file).read_text()
    if text.count(mutant.old) != 1 or mutant.old == mutant.new:
        raise ValueError(
            f"old text of {mutant.name!r} must occur once in {mutant.file} and differ from the "
            f"new one, got it {text.count(mutant.old)} times"
        )
    return text.replace(mutant.old, mutant.new)


def run_tests(root: Path, tests: Iterable[str], timeout: float | None = TIMEOUT) -> tuple[int, str]:
    """Pytest's exit code in a copy of the tree, and what it printed; -1 after the time limit."""
    command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not gpu", *tests]
    own = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=root, env=own, capture_output=True, text=True, timeout=timeout
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout + done.stderr


def verdict(root: Path, mutant: Mutant) -> str:
    """Whether its tests, which pass without it, fail with it."""
    try:
        text = planted(mutant, root)
    except (OSError, ValueError) as error:
        return f"does not apply: {error}"
    path = root / mutant.file
    whole = path.read_text()
    path.write_text(text)
    code, _ = run_tests(root, mutant.killers)
    path.write_text(whole)
    if code == 0:
        return "survived"
    return "killed" if code == FAILED else f"its tests do not run (pytest exits with {code})"


def copy_tree(target: Path) -> None:
    """What tests need, without compiled files, which might hide a mutant of the same second."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target / name)


def main() -> int:
    """Runs the mutants asked for, prints a table; 1 unless all were killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    only = parser.parse_args().only
    unknown = set(only or ()) - {mutant.name for mutant in read()}
    if unknown:
        parser.error(f"--only must be a name of tests/mutants.toml, got {min(unknown)!r}")
    mutants = [mutant for mutant in read() if not only or mutant.name in only]
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    alive = 0
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        copy_tree(root)
        tests = dict.fromkeys(killer for mutant in mutants for killer in mutant.killers)
        code, printed = run_tests(root, tests, timeout=None)
        if code:
            print(printed, "All tests must pass before a fault is planted.")
            return 1
        for mutant in mutants:
            began = time.perf_counter()
            found = verdict(root, mutant)
            alive += found != "killed"
            print(f"{mutant.name:45} {time.perf_counter() - began:6.1f} s  {found}", flush=True)
    print(f"{alive} of {len(mutants)} not killed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
