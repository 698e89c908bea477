"""Commands of the embedding room."""

import sys

import tyro

from embed.run import Exclude, FitTransform, ImportReference, Plot, Run
from pretrain.cli.command import run_command


def _parse() -> Run | Exclude | FitTransform | ImportReference | Plot:
    return tyro.cli(
        Run | Exclude | FitTransform | ImportReference | Plot,
        prog="python -m embed",
        config=(tyro.conf.OmitSubcommandPrefixes,),
    )


if __name__ == "__main__":
    sys.exit(run_command(_parse))
