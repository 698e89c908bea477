"""Commands of the pretraining room."""

import sys

from pretrain.cli.command import run_command
from pretrain.cli.menu import Menu

COMMANDS = {
    "simclr": "pretrain.commands:pretrain_simclr",
    "convert": "pretrain.commands:convert",
    "probe": "pretrain.commands:probe",
}
MENU = Menu(
    "pretrain", "Public encoders: pretraining without labels, conversion, probes.", COMMANDS
)


if __name__ == "__main__":
    sys.exit(run_command(lambda: MENU.parse(sys.argv[1:], "python -m pretrain")))
