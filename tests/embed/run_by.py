"""`embed run` that is told what it chooses by a rule: engine, precision and size of shards."""

from dataclasses import dataclass, replace

from embed.options import EngineName, ExtractOptions, Precision
from embed.run import Run


@dataclass(frozen=True, kw_only=True)
class RunBy(Run):
    """Embed an image set by one engine, in one precision."""

    engine: EngineName = "auto"
    compute: Precision = "auto"
    shard_rows: int = 2048

    @property
    def computing(self) -> ExtractOptions:
        """The command's, and these three."""
        return replace(
            super().computing,
            engine=self.engine,
            compute=self.compute,
            shard_rows=self.shard_rows,
        )
