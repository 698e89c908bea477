"""CPU seconds of every command before it works, by package.

    python tests/benchmarks/bench_startup.py
    python tests/benchmarks/bench_startup.py --only account --times 5

Each command line runs in a process of its own; of some runs the least user + system time is
stated, and the packages of one more run whose modules together took longest to execute.
"""

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from train_distributed.__main__ import MENU, PROGRAM

ROOT = Path(__file__).parents[2]
SOLVE = "account --epsilon 1 --delta 1e-5"
LISTING = "from train_distributed.__main__ import main; raise SystemExit(main())"
SHOWN = 3  # packages


def command_lines() -> dict[str, list[str]]:
    """Arguments of the interpreter for a command."""
    lines = {f"{PROGRAM} --help": ["-c", LISTING, "--help"]}
    lines |= _typed("train_distributed", "", SOLVE)
    for menu in (MENU, PRETRAIN, EMBED):
        for name in ("", *menu.groups, *menu.commands):
            lines |= _typed(menu.room or "train_distributed", name, "--help")
    return lines | _typed("heads", "fit", "--help")


def _typed(room: str, name: str, rest: str) -> dict[str, list[str]]:
    words = ["-m", room, *name.split(), *rest.split()]
    return {" ".join(words[1:]): words}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one run."""
    child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise ValueError(f"a command must end with 0, got {child.returncode} for {arguments}")
    return usage.ru_utime + usage.ru_stime


def heaviest(arguments: list[str]) -> list[tuple[str, float]]:
    """The packages whose own modules took longest to execute, in wall seconds."""
    command = [sys.executable, "-X", "importtime", *arguments]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stderr
    spent: Counter[str] = Counter()
    for own, module in re.findall(r"^import time: +(\d+) \| +\d+ \| +(\S+)$", told, re.MULTILINE):
        spent[module.partition(".")[0]] += int(own)
    return [(package, microseconds / 1e6) for package, microseconds in spent.most_common(SHOWN)]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--only", default="", help="only command lines that contain this")
    parser.add_argument("--times", type=int, default=3, help="runs of each")
    options = parser.parse_args()
    print(f"{'command':52} {'CPU s':>6}  heaviest packages (own modules, s)")
    for line, arguments in command_lines().items():
        if options.only in line:
            best = min(cpu_seconds(arguments) for _ in range(options.times))
            packages = ", ".join(f"{name} {spent:.2f}" for name, spent in heaviest(arguments))
            print(f"{line:52} {best:6.2f}  {packages}", flush=True)


if __name__ == "__main__":
    main()
