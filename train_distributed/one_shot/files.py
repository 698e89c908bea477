"""The files of a release, checked as they are read: anybody may have made them."""

from pathlib import Path

import torch
from torch import Tensor

from embed import PublicTransform
from pretrain.cli.json_text import read_field
from pretrain.tensor_file import read_tensors

MODEL, REPORT = "model.safetensors", "report.json"
LARGEST_WEIGHT = 1e100  # of a file that anybody may have made: squares of scores are finite
PREFIX = "transform."  # of the public transform's tensors


def read_model(model: Path) -> tuple[Tensor, PublicTransform, tuple[str, ...], dict[str, str]]:
    """Reads model.safetensors, whose parts fit one another.

    Returns:
        (d, K) finite float64 weights, the transform of their rows, the names of K distinct classes,
        and the file's metadata.

    Raises:
        ValueError: naming the file that is missing, damaged or does not fit.
    """
    tensors, metadata = read_tensors(model, "a released model")
    weights = tensors.pop("weights", None)
    if weights is None or weights.ndim != 2 or not weights.is_floating_point():
        found = "none" if weights is None else f"{weights.dtype} {tuple(weights.shape)}"
        raise ValueError(f"{model}: weights must be a float (d, K), got {found}")
    if not (weights.abs() <= LARGEST_WEIGHT).all():  # also true for NaN
        largest = float(weights.abs().max())
        raise ValueError(
            f"{model}: weights must be finite and at most {LARGEST_WEIGHT:g}, got {largest:g}"
        )
    if unknown := sorted(name for name in tensors if not name.startswith(PREFIX)):
        raise ValueError(f"{model} must hold weights and a transform, got {unknown} too")
    transform = _transform(model, {k.removeprefix(PREFIX): v for k, v in tensors.items()})
    if weights.shape[0] != transform.dim:
        raise ValueError(
            f"{model}: weights must have {transform.dim} rows, as the transform's rows have "
            f"columns, got {weights.shape[0]}"
        )
    names = _class_names(model, metadata)
    if weights.shape[1] != len(names):
        raise ValueError(
            f"{model}: class_names must name {weights.shape[1]} classes, got {len(names)}"
        )
    return weights.double(), transform, names, metadata


def _transform(path: Path, tensors: dict[str, Tensor]) -> PublicTransform:
    for name, values in tensors.items():
        if values.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{path}: {PREFIX}{name} must be float, got {values.dtype}")
    try:
        return PublicTransform.from_tensors(tensors)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from error


def _class_names(path: Path, metadata: dict[str, str]) -> tuple[str, ...]:
    names = read_field(metadata, "class_names", path)
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < max(2, len(names))
    ):
        raise ValueError(f"{path}: class_names must be two distinct names or more, got {names}")
    return tuple(names)
