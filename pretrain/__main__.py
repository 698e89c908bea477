"""Commands of the pretraining room."""

import sys

import tyro

from pretrain.cli.command import run_command
from pretrain.cli.menu import Menu

MENU = Menu(
    name="pretrain",
    words="Public encoders: pretraining without labels, conversion, probes.",
    commands={
        "simclr": "pretrain.commands:Simclr",
        "convert": "pretrain.commands:Convert",
        "probe": "pretrain.commands:Probe",
    },
    markers=(tyro.conf.OmitSubcommandPrefixes,),
)


if __name__ == "__main__":
    sys.exit(run_command(lambda: MENU.parse(sys.argv[1:], "python -m pretrain")))
