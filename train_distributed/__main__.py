"""All users' commands: without arguments the embedded default, end to end, on real images."""

import sys

import tyro

from pretrain.command import run_command
from train_distributed.account import Account
from train_distributed.audit.command import Audit
from train_distributed.demo import Demo
from train_distributed.flower.commands import Agree, Certificates, Client, Keys, Server
from train_distributed.protection.command import Protect
from train_distributed.run import Run
from train_distributed.select import Select
from train_distributed.sweep import Plot, Sweep

Simulation = Demo | Run | Sweep | Plot | Select | Account | Audit | Protect
Deployment = Keys | Certificates | Agree | Server | Client


def _parse() -> Simulation | Deployment:
    return tyro.cli(
        Demo
        | Run
        | Sweep
        | Plot
        | Select
        | Account
        | Audit
        | Protect
        | Keys
        | Certificates
        | Agree
        | Server
        | Client,
        default=Demo(),
        prog="python -m train_distributed",
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
