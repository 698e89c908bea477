"""Commands of the embedding room."""

import sys

from pretrain.cli.command import run_command
from pretrain.cli.menu import Entry, Menu

MENU = Menu(
    name="embed",
    words="Embeddings: extraction, import, public transform, plots.",
    entries=(
        Entry("run", "embed.run:Run"),
        Entry("concat", "embed.concat:Concat"),
        Entry("exclude", "embed.run:Exclude"),
        Entry("hold-out", "embed.hold_out:HoldOut"),
        Entry("fit-transform", "embed.run:FitTransform"),
        Entry("import-reference", "embed.reference:ImportReference"),
        Entry("plot", "embed.plot:Plot"),
    ),
)


if __name__ == "__main__":
    sys.exit(run_command(lambda: MENU.parse(sys.argv[1:], "python -m embed")))
