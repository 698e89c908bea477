"""Files of the benchmarks' figures."""

import json
from pathlib import Path
from typing import Any

from pretrain.cli.output import new_file


def save(path: Path | None, figures: Any) -> None:
    """Writes JSON that appears whole or not at all; nothing without a path."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as file:
            file.write_text(json.dumps(figures, indent=1) + "\n")
