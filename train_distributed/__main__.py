"""All users' commands, and the program `blind-averaging` with those of all rooms.

Without arguments, runs `demo` on the bundled digits.
"""

import sys
from dataclasses import replace
from importlib.metadata import version

from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from pretrain.cli.command import Command, run_command
from pretrain.cli.menu import Menu
from train_distributed.commands import COMMANDS, GROUPS
from train_distributed.one_shot.registry import MANY_ROUNDS, NOT_PRIVATE, RIVALS

PROGRAM = "blind-averaging"
HEADS = "heads"  # a room that parses its own command
WORDS = "One differentially private model of all users' embeddings (--version: which)."
HEAD = Menu(HEADS, "One head on one user's data.", {"fit": "heads.__main__:Fit"})


def _homes() -> dict[str, str]:
    """The table of commands, in which every rival has a command of its own."""
    found = dict[str, str]()
    for name, home in COMMANDS.items():
        of_rivals = (*RIVALS, *MANY_ROUNDS, *NOT_PRIVATE) if name == "rival" else ()
        module = home.partition(":")[0]
        found |= {f"{name}_{each}": f"{module}:{each}" for each in of_rivals} or {name: home}
    return found


MENU = Menu("", WORDS, _homes(), GROUPS, default="demo")
ROOMS = replace(MENU, rooms=(PRETRAIN, EMBED, HEAD))


def _parse() -> Command:
    return MENU.parse(sys.argv[1:], "python -m train_distributed")


def main() -> int:
    """The program `blind-averaging`: `python -m ROOM COMMAND` of every room as one."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(PROGRAM, version(PROGRAM))
        return 0
    if arguments[:1] == [HEADS]:
        from heads.__main__ import main as fit_head

        return fit_head(arguments[1:], f"{PROGRAM} {HEADS}")
    return run_command(lambda: ROOMS.parse(arguments, PROGRAM))


if __name__ == "__main__":
    sys.exit(run_command(_parse))
