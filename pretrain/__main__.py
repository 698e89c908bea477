"""Commands of the pretraining room."""

import sys

import tyro

from pretrain.cli.command import run_command
from pretrain.commands import Convert, Probe, Simclr


def _parse() -> Simclr | Convert | Probe:
    return tyro.cli(
        Simclr | Convert | Probe,
        prog="python -m pretrain",
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
