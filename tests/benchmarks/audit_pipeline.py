"""One of your pictures is replaced in eight ways, and the output of whole commands compared.

    python tests/benchmarks/audit_pipeline.py --data PHOTOS --output results/audit/pipeline

`embed run`, `hold-out`, `exclude`, `run` and `evaluate` may show nothing of a replaced record but
that record: all other rows are the same bits, sums move by their sensitivity at most, and reports
are equal. Exit code 1 if a comparison is broken.
"""

import itertools
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import tyro

from pretrain.cli.output import new_directory, write_json
from pretrain.cli.provenance import provenance
from pretrain.sources import open_images
from tests.train_distributed.research.audit.neighbours import (
    PipelineAudit,
    as_text,
    checks,
    records_of,
)


def main(
    data: str,
    output: Path,
    layout: str = "auto",
    pictures: int = 24,
    encoder: str = "simclr-small",
    weights: str | None = None,
) -> int:
    """Compares, prints a line per command and place, writes audit.json and table.txt.

    So many labelled pictures are taken; data, layout, encoder and weights are those of `embed run`.
    """
    images = open_images(data, layout=layout)
    records, network = records_of(images, pictures), {"encoder": encoder, "weights": weights}
    found, lines = [], []
    with tempfile.TemporaryDirectory(prefix="audit-") as scratch:
        pipeline = PipelineAudit(records, images.class_names, Path(scratch), network)
        for group in itertools.groupby(checks(pipeline), key=lambda c: (c.command, c.where)):
            found += (group := list(group[1]))
            lines.append(as_text(group))
            print(lines[-1], flush=True)
    broken = sum(check.broken for check in found)
    lines.append(f"{broken} of {len(found)} comparisons broken")
    print(lines[-1])
    with new_directory(output, overwrite=True) as partial:
        result = {"broken": broken, "checks": [asdict(check) for check in found]}
        write_json(partial / "audit.json", provenance() | result)
        (partial / "table.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
