"""JSON from outside."""

import json
from typing import Any


def parsed(text: str | bytes, **hooks: Any) -> Any:
    """`json.loads`, with its keyword arguments.

    Raises:
        ValueError: not JSON, or nested deeper than the interpreter's stack allows.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it must be JSON of few levels, got too many") from None
