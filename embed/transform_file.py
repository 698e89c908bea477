"""File of a public transform: tensors, and where they come from."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed.encoding import Encoding
from embed.known_classes import KnownClasses
from pretrain.cli.json_text import read_field
from pretrain.tensor_file import read_tensors


def read_transform_file(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, and their provenance.

    Returns:
        Tensors, and `fitted_on`, `seen`, `dropped`, `encoding`, `known` and `options`; older files
        lack some.

    Raises:
        ValueError: missing, damaged or something else.
    """
    tensors, metadata = read_tensors(path, "a saved transform")
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
        "known": KnownClasses.taken_from(tensors, metadata, path),
        "options": _options(metadata, path),
    }


def _options(metadata: dict[str, str], path: Path) -> dict[str, Any] | None:
    options = read_field(metadata, "options", path)
    if not isinstance(options, dict | None):
        raise ValueError(f"{path}: options must be a JSON object, got {metadata['options']}")
    return options
