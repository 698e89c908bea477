"""JSON from outside."""

import json
from pathlib import Path
from typing import Any, NoReturn


def parsed(text: str | bytes, **hooks: Any) -> Any:
    """`json.loads`, with its keyword arguments.

    Raises:
        ValueError: not JSON, or nested deeper than the interpreter's stack allows.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it must be JSON of few levels, got too many") from None


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds, numbers finite; ValueError names the file."""
    try:
        found = parsed(path.read_text("utf-8"), parse_constant=_refuse)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} must be a readable JSON object, got: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must be a JSON object, got {type(found).__name__}")
    return found


def read_field(metadata: dict[str, str], name: str, where: Path) -> Any:
    """A field of a safetensors file's metadata, as JSON; None: absent. ValueError names both."""
    if name not in metadata:
        return None
    try:
        return parsed(metadata[name], parse_constant=_refuse)
    except ValueError as error:
        raise ValueError(f"{where}: {name} must be JSON, got: {error}") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"numbers must be finite, got {constant}")
