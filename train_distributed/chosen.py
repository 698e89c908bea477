"""Method, transform and options of a run, as the file that `select` writes."""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from train_distributed.privacy import Privacy
from train_distributed.transform_options import TransformOptions


@dataclass(frozen=True)
class Chosen:
    """What `select` writes and `run --config` reads."""

    method: str
    transform_options: TransformOptions
    options: dict[str, Any]
    privacy: Privacy  # that it was chosen for
    public_hash: str | None = None  # of the set it was chosen on; None: by hand

    def text(self) -> str:
        """JSON; an infinite ε is the word "inf"."""
        fields = asdict(self)
        if math.isinf(self.privacy.epsilon):
            fields["privacy"]["epsilon"] = "inf"
        return json.dumps(fields, indent=1, allow_nan=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> "Chosen":
        """Reads what `text` gave.

        Raises:
            ValueError: missing, damaged, or with other fields.
        """
        try:
            fields = json.loads(path.read_text())
            fields["privacy"]["epsilon"] = float(fields["privacy"]["epsilon"])
            public_hash = fields.pop("public_hash")
            return cls(
                method=str(fields.pop("method")),
                transform_options=TransformOptions(**fields.pop("transform_options")),
                options=dict(fields.pop("options")),
                privacy=Privacy(**fields.pop("privacy")),
                public_hash=None if public_hash is None else str(public_hash),
                **fields,
            )
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"config must be what select wrote, got {path}: {error}") from error
