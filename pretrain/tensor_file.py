"""Safetensors files; equal content is written as equal bytes, so that files are known by hashes."""

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor


def read_tensors(
    path: Path, kind: str = "a safetensors file"
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name, and metadata, of a safetensors file.

    Args:
        path: the file.
        kind: what it must be, for the error.

    Raises:
        ValueError: missing or damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be {kind}, got: {error}") from error


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes contiguous tensors and metadata, which the library's own writer orders by chance."""
    whole = memoryview(save(tensors, metadata))
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(bytes(whole[8:start]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of their size
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(whole[start:])
