"""The file of a public transform, read with every part checked that is not its mathematics."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from embed.encoding import Encoding


def read_transform_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and what is known of where they come from.

    Returns:
        Tensors, and `fitted_on`, `seen`, `dropped` and `encoding`; unknown in an older file.

    Raises:
        ValueError: missing, damaged or something else.
    """
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} must be a saved transform, got: {error}") from error
    seen = tensors.pop("seen", None)
    if seen is not None and (seen.dtype != torch.int64 or seen.ndim != 1):
        raise ValueError(f"{path}: seen must be int64 (m,), got {seen.dtype} {seen.shape}")
    dropped = metadata.get("dropped", "0")
    if not dropped.isdecimal():
        raise ValueError(f"{path}: dropped must be a whole number, got {dropped!r}")
    return tensors, {
        "fitted_on": metadata.get("fitted_on", ""),
        "seen": None if seen is None else seen.numpy().view(np.uint64),
        "dropped": int(dropped),
        "encoding": Encoding.in_metadata(metadata, path),
    }
