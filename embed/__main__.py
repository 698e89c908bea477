"""Commands of the embedding room."""

import sys

from embed.commands import COMMANDS
from pretrain.cli.command import run_command
from pretrain.cli.menu import Menu

MENU = Menu("embed", "Embeddings: extraction, public transform.", COMMANDS)


if __name__ == "__main__":
    sys.exit(run_command(lambda: MENU.parse(sys.argv[1:], "python -m embed")))
