"""`embed run` that is told what it chooses by a rule: engine, precision and size of shards.

    python -m tests.benchmarks.run_by --data SET --compute bfloat16 --engine openvino

For results that hold one engine still. Everything else is as in `embed run`.
"""

import sys
from dataclasses import dataclass, replace

import tyro

from embed.options import EngineName, ExtractOptions, Precision
from embed.run import Run
from pretrain.cli.command import run_command


@dataclass(frozen=True, kw_only=True)
class RunBy(Run):
    """Embed an image set by one engine, in one precision."""

    engine: EngineName = "auto"  # that runs the network
    compute: Precision = "auto"
    shard_rows: int = 2048

    @property
    def computing(self) -> ExtractOptions:
        """The command's, and these three."""
        given = {"engine": self.engine, "compute": self.compute, "shard_rows": self.shard_rows}
        return replace(super().computing, **given)


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(RunBy, prog="python -m tests.benchmarks.run_by")))
