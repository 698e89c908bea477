"""File of a public transform: tensors, and where they come from."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed.encoding import Encoding
from embed.known_classes import KnownClasses
from pretrain import check
from pretrain.cli.json_text import read_field
from pretrain.cli.output import new_file
from pretrain.tensor_file import read_tensors, write_tensors


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
    options = read_field(metadata, "options", path)
    if not isinstance(options, dict | None):
        raise ValueError(f"{path}: options must be a JSON object, got {metadata['options']}")
    return tensors, {
        "fitted_on": metadata.get("fitted_on", ""),
        "seen": None if seen is None else seen.numpy().view(np.uint64),
        "dropped": int(dropped),
        "encoding": Encoding.in_metadata(metadata, path),
        "known": KnownClasses.taken_from(tensors, metadata, path),
        "options": options,
    }


def write_transform_file(
    path: Path, tensors: dict[str, Tensor], provenance: dict[str, Any]
) -> None:
    """Writes what `read_transform_file` returns, whole or not at all."""
    tensors = dict(tensors)
    metadata = {"fitted_on": provenance["fitted_on"], "dropped": str(provenance["dropped"])}
    if provenance["seen"] is not None:
        tensors["seen"] = torch.from_numpy(provenance["seen"].view(np.int64))
    if provenance["options"] is not None:
        metadata["options"] = json.dumps(provenance["options"])
    if provenance["encoding"] is not None:
        metadata |= provenance["encoding"].metadata()
    if provenance["known"] is not None:
        tensors |= provenance["known"].tensors()
        metadata |= provenance["known"].metadata()
    with new_file(path) as partial:
        write_tensors(partial, {k: v.contiguous() for k, v in tensors.items()}, metadata)


def fields_of(tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Fields of a transform from the result of its `tensors`.

    Raises:
        ValueError: a tensor is missing, as in files of earlier versions, or the shapes do not fit
            together.
    """
    names = {"mean", "basis", "scale", "bounds", "row_mean", "within_class"}
    if names - tensors.keys() or "second_moment" in tensors:
        raise ValueError(
            f"transform must hold {sorted(names)}, got {sorted(tensors)}; one of an earlier "
            "version is to be fitted again"
        )
    if tensors["bounds"].shape != (2,) or tensors["basis"].ndim != 2:
        raise ValueError("bounds must have shape (2,) and basis (p, D), got others")
    p, d = tensors["basis"].shape
    shapes: dict[str, tuple[Any, ...]] = {"mean": (p,), "basis": (p, d), "row_mean": (d,)}
    shapes |= {"scale": (d,) if tensors["scale"].ndim else (), "within_class": (d, d)}
    shapes |= {"between_class": (d, d), "directions": (d, "q"), "centre": ("q",)}
    fields: dict[str, Any] = {name: tensors[name] for name in shapes if name in tensors}
    for name, values in fields.items():
        check.shape(shapes[name], **{name: values})
    if ("directions" in tensors) != ("centre" in tensors):
        raise ValueError("directions and centre must be there together, got one of them")
    if "directions" in tensors:
        check.shape((tensors["directions"].shape[1],), centre=tensors["centre"])
        check.shape((), length=tensors.get("length", torch.empty(0)))
        fields["length"] = float(tensors["length"])
    clip_norm, constant = tensors["bounds"].tolist()
    return fields | {"clip_norm": clip_norm, "constant": constant}
