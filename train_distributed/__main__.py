"""All users' commands, and the program `blind-averaging` with those of all rooms.

Without arguments: the embedded default, end to end, on real images.
"""

import sys
from importlib.metadata import version

from embed.__main__ import MENU as EMBED
from pretrain.__main__ import MENU as PRETRAIN
from pretrain.cli.command import Command, run_command
from pretrain.cli.menu import Entry, Menu
from pretrain.cli.terminal import replace_missing

PROGRAM = "blind-averaging"
_FOLDER = "train_distributed.commands"
_DEMO = Entry("demo", f"{_FOLDER}.demo:Demo")
FEDERATION = Menu(
    name="federation",
    words="A federation of real parties: keys, set-up, sessions, state.",
    entries=(
        Entry("join", f"{_FOLDER}.federation:Join"),
        Entry("init", f"{_FOLDER}.federation:Init"),
        Entry("start", f"{_FOLDER}.federation:Start"),
        Entry("status", f"{_FOLDER}.federation:Status"),
        Entry("renew", f"{_FOLDER}.federation:Renew"),
        Entry("window", f"{_FOLDER}.federation.collecting:MakeWindow"),
        Entry("invite", f"{_FOLDER}.federation.aggregating:Invite"),
        Entry("aggregator", f"{_FOLDER}.federation.aggregating:Aggregate"),
        Entry("report", f"{_FOLDER}.federation.reporting:Report"),
        Entry("collect", f"{_FOLDER}.federation.collecting:Collect"),
    ),
)
LEDGER = Menu(
    name="ledger",
    words="What is spent on private rows: show it, reserve, note as spent, limit, merge.",
    entries=(
        Entry("show", f"{_FOLDER}.ledger:Show"),
        Entry("reserve", f"{_FOLDER}.ledger:Reserve"),
        Entry("spend", f"{_FOLDER}.ledger:Spend"),
        Entry("limit", f"{_FOLDER}.ledger:SetLimit"),
        Entry("merge", f"{_FOLDER}.ledger:Merge"),
    ),
)
MENU = Menu(
    name="train_distributed",
    words="All users: one private model, simulations, experiments, audits.",
    entries=(
        _DEMO,
        Entry("run", f"{_FOLDER}.run:Run"),
        Entry("predict", f"{_FOLDER}.predict:Predict"),
        Entry("evaluate", f"{_FOLDER}.evaluate:Evaluate"),
        Entry("export", f"{_FOLDER}.export:Export"),
        Entry("card", f"{_FOLDER}.card:Card"),
        Entry("sweep", f"{_FOLDER}.sweep:Sweep"),
        Entry("plot", f"{_FOLDER}.sweep:Plot"),
        Entry("rehearse", f"{_FOLDER}.rehearse:Rehearse"),
        Entry("account", f"{_FOLDER}.account:Account"),
        Entry("audit", f"{_FOLDER}.audit:Audit"),
        Entry("protect", f"{_FOLDER}.protect:Protect"),
        LEDGER,
        FEDERATION,
    ),
    default=_DEMO,
)
HEADS = "heads"  # a room that parses its own command
ROOMS = Menu(
    name=PROGRAM,
    words="The commands of all rooms.",
    entries=(*MENU.entries, PRETRAIN, EMBED, Entry(f"{HEADS} fit", "heads.__main__:Fit")),
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
            f"Options of a command: {PROGRAM} COMMAND --help. Without a command: {_DEMO.name}.",
        ]
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
