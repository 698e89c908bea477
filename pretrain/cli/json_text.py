"""JSON that somebody else may have written."""

import json
from typing import Any


def parsed(text: str | bytes, **hooks: Any) -> Any:
    """`json.loads`, with its keyword arguments.

    Raises:
        ValueError: not JSON, or of more levels than the interpreter's stack holds, which would
            otherwise end a command without a word of which file it was.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it must be JSON of few levels, got too many") from None
