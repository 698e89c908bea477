"""Safetensors files of the same bytes for the same content: such a file is known by its hash."""

import json
from pathlib import Path

from safetensors.torch import save
from torch import Tensor


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Writes contiguous tensors and what is said of them.

    The library's own writer orders metadata by chance.
    """
    whole = memoryview(save(tensors, metadata))
    start = 8 + int.from_bytes(whole[:8], "little")
    header = json.loads(bytes(whole[8:start]))
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start at multiples of their size
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(whole[start:])
