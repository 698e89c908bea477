"""All users' commands, and the program `blind-averaging` with those of all rooms.

Without arguments: the embedded default, end to end, on real images.
"""

import sys
from importlib.metadata import version

from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from pretrain.cli.command import Command, replace_missing, run_command
from pretrain.cli.menu import Menu
from train_distributed.one_shot.registry import MANY_ROUNDS, NOT_PRIVATE, RIVALS

PROGRAM = "blind-averaging"
_FOLDER = "train_distributed.commands"
_DEMO = f"{_FOLDER}.demo:Demo"
FEDERATION = Menu(
    name="federation",
    words="A federation of real parties: keys, set-up, sessions, state.",
    commands={
        "join": f"{_FOLDER}.federation:Join",
        "init": f"{_FOLDER}.federation:Init",
        "start": f"{_FOLDER}.federation:Start",
        "status": f"{_FOLDER}.federation:Status",
        "renew": f"{_FOLDER}.federation:Renew",
        "window": f"{_FOLDER}.federation.collecting:MakeWindow",
        "invite": f"{_FOLDER}.federation.aggregating:Invite",
        "aggregator": f"{_FOLDER}.federation.aggregating:Aggregate",
        "report": f"{_FOLDER}.federation.reporting:Report",
        "collect": f"{_FOLDER}.federation.collecting:Collect",
    },
)
LEDGER = Menu(
    name="ledger",
    words="What is spent on private rows: show it, reserve, note as spent, limit, merge.",
    commands={
        "show": f"{_FOLDER}.ledger:Show",
        "reserve": f"{_FOLDER}.ledger:Reserve",
        "spend": f"{_FOLDER}.ledger:Spend",
        "limit": f"{_FOLDER}.ledger:SetLimit",
        "merge": f"{_FOLDER}.ledger:Merge",
    },
)
RIVAL = Menu(
    name="rival",
    words="Methods that ours are compared with, each with options of its own.",
    commands={name: f"{_FOLDER}.rivals:{name}" for name in (*RIVALS, *MANY_ROUNDS, *NOT_PRIVATE)},
)
MENU = Menu(
    name="train_distributed",
    words="All users: one private model, simulations, experiments, audits.",
    commands={
        "demo": _DEMO,
        "run": f"{_FOLDER}.releasing:Run",
        "simulate": f"{_FOLDER}.releasing:Simulate",
        "rival": RIVAL,
        "predict": f"{_FOLDER}.predict:Predict",
        "evaluate": f"{_FOLDER}.evaluate:Evaluate",
        "export": f"{_FOLDER}.export:Export",
        "card": f"{_FOLDER}.card:Card",
        "sweep": f"{_FOLDER}.sweep:Sweep",
        "plot": f"{_FOLDER}.sweep:Plot",
        "rehearse": f"{_FOLDER}.rehearse:Rehearse",
        "account": f"{_FOLDER}.account:Account",
        "audit": f"{_FOLDER}.audit:Audit",
        "protect": f"{_FOLDER}.protect:Protect",
        "ledger": LEDGER,
        "federation": FEDERATION,
    },
    default=_DEMO,
)
HEADS = "heads"  # a room that parses its own command
ROOMS = Menu(
    name=PROGRAM,
    words="The commands of all rooms.",
    commands={
        **MENU.commands,
        "pretrain": PRETRAIN,
        "embed": EMBED,
        f"{HEADS} fit": "heads.__main__:Fit",
    },
    default=_DEMO,
)


def _parse() -> Command:
    return MENU.parse(sys.argv[1:], "python -m train_distributed")


def main() -> int:
    """The program `blind-averaging`: `python -m ROOM COMMAND` of every room as one."""
    arguments = sys.argv[1:]
    replace_missing()
    if arguments in (["-h"], ["--help"]):
        print(_listing())
        return 0
    if arguments == ["--version"]:
        print(PROGRAM, version(PROGRAM))
        return 0
    if arguments[:1] == [HEADS]:
        from heads.__main__ import main as fit_head

        return fit_head(arguments[1:], f"{PROGRAM} {HEADS}")
    return run_command(lambda: ROOMS.parse(arguments, PROGRAM))


def _listing() -> str:
    lines = dict(ROOMS.lines())
    wide = max(map(len, lines))
    return "\n".join(
        [
            f"usage: {PROGRAM} [--help | --version | COMMAND [options]]",
            "",
            *(f"  {name:{wide}}  {words}" for name, words in lines.items()),
            "",
            f"Options of a command: {PROGRAM} COMMAND --help. Without a command: demo.",
        ]
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
