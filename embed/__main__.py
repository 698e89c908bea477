"""Commands of the embedding room."""

import sys

from pretrain.cli.command import run_command
from pretrain.cli.menu import Menu

MENU = Menu(
    name="embed",
    words="Embeddings: extraction, import, public transform, plots.",
    commands={
        "run": "embed.run:Run",
        "concat": "embed.concat:Concat",
        "exclude": "embed.run:Exclude",
        "hold-out": "embed.hold_out:HoldOut",
        "fit-transform": "embed.run:FitTransform",
        "import-reference": "embed.reference:ImportReference",
        "plot": "embed.plot:Plot",
    },
)


if __name__ == "__main__":
    sys.exit(run_command(lambda: MENU.parse(sys.argv[1:], "python -m embed")))
