"""All users' commands: without arguments the embedded default, end to end, on real images."""

import sys

import tyro

from pretrain.command import run_command
from train_distributed.account import Account
from train_distributed.demo import Demo
from train_distributed.run import Run
from train_distributed.sweep import Sweep


def _parse() -> Demo | Run | Sweep | Account:
    return tyro.cli(
        Demo | Run | Sweep | Account,
        default=Demo(),
        prog="python -m train_distributed",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
