"""One of your pictures is replaced in eight ways, and the output of whole commands compared.

    python tests/benchmarks/audit_pipeline.py --data PHOTOS --output results/audit/pipeline

`embed run`, `hold-out`, `exclude`, `run` and `evaluate` may show nothing of a replaced record but
that record: all other rows are the same bits, sums move by their sensitivity at most, and reports
are equal. Exit code 1 if a comparison is broken.
"""

import argparse
import itertools
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from pretrain.cli.output import new_directory, write_json
from pretrain.cli.provenance import provenance
from pretrain.sources import open_images
from tests.train_distributed.research.audit.pipeline.neighbours import (
    PipelineAudit,
    as_text,
    checks,
)
from tests.train_distributed.research.audit.pipeline.records import records_of


def main() -> int:
    """Compares, prints a line per command and place, writes audit.json and table.txt."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--data", required=True, help="labelled pictures, as for `embed run`")
    parser.add_argument("--layout", default="auto", help="layout of a folder of pictures")
    parser.add_argument("--pictures", type=int, default=24, help="number of pictures to take")
    parser.add_argument("--encoder", default="simclr-small", help="encoder as for `embed run`")
    parser.add_argument("--weights", help="weights file of the encoder")
    parser.add_argument("--output", type=Path, required=True, help="directory to write")
    given = parser.parse_args()
    images = open_images(given.data, layout=given.layout)
    records = records_of(images, given.pictures)
    encoder = {"encoder": given.encoder, "weights": given.weights}
    found, lines = [], []
    with tempfile.TemporaryDirectory(prefix="audit-") as scratch:
        pipeline = PipelineAudit(records, images.class_names, Path(scratch), encoder)
        for group in itertools.groupby(checks(pipeline), key=lambda c: (c.command, c.where)):
            found += (group := list(group[1]))
            lines.append(as_text(group))
            print(lines[-1], flush=True)
    broken = sum(check.broken for check in found)
    lines.append(f"{broken} of {len(found)} comparisons broken")
    print(lines[-1])
    with new_directory(given.output, overwrite=True) as partial:
        result = {"broken": broken, "checks": [asdict(check) for check in found]}
        write_json(partial / "audit.json", provenance() | result)
        (partial / "table.txt").write_text("\n".join(lines) + "\n", "utf-8")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main())
