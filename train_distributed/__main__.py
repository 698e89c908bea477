"""All users' commands: without arguments the embedded default, end to end, on real images."""

import sys
from typing import Annotated, Any

import tyro

from pretrain.cli.command import Command, run_command

FEDERATION = "federation"
_FLAT = (tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes)


def _parse() -> Command:
    """Commands of a federation load neither torch nor encoders before they need them."""
    if sys.argv[1:2] == [FEDERATION]:
        prog = f"python -m train_distributed {FEDERATION}"
        return tyro.cli(_deployment(), args=sys.argv[2:], prog=prog, config=_FLAT)
    from train_distributed.commands.demo import Demo

    prog = "python -m train_distributed"
    return tyro.cli(_simulation(), default=Demo(), prog=prog, config=_FLAT)


def _deployment() -> Any:
    from train_distributed.commands.federation import Init, Join, Renew, Start, Status

    return Join | Init | Start | Status | Renew


def _simulation() -> Any:
    from train_distributed.commands.account import Account
    from train_distributed.commands.audit import Audit
    from train_distributed.commands.demo import Demo
    from train_distributed.commands.protect import Protect
    from train_distributed.commands.run import Run
    from train_distributed.commands.select import Select
    from train_distributed.commands.sweep import Plot, Sweep

    words = "A federation of real parties: keys, set-up, sessions, state."
    federation = tyro.conf.subcommand(FEDERATION, description=words)
    each = Demo | Run | Sweep | Plot | Select | Account | Audit | Protect
    return each | Annotated[_deployment(), federation]


if __name__ == "__main__":
    sys.exit(run_command(_parse))
