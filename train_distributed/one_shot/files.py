"""The files of a release, checked as they are read: anybody may have made them."""

from pathlib import Path

import torch
from torch import Tensor

from embed import PublicTransform
from pretrain.cli.json_text import read_field
from pretrain.encoders.weights import read_tensors
from train_distributed.one_shot.class_prior import TOLERANCE

MODEL, REPORT = "model.safetensors", "report.json"
LARGEST_WEIGHT = 1e100  # guard: anybody may have made a file; squares of scores are finite
PREFIX = "transform."  # of the public transform's tensors
SHARES = "class_shares"  # of the private rows, noised


def read_model(
    model: Path,
) -> tuple[Tensor, PublicTransform, tuple[str, ...], Tensor | None, dict[str, str]]:
    """Reads model.safetensors, whose parts fit one another.

    Returns:
        (d, K) finite float64 weights, the transform of their rows, the names of K distinct classes,
        their (K,) float64 shares or None, and the file's metadata.

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
    shares = tensors.pop(SHARES, None)
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
    return weights.double(), transform, names, _shares(model, shares, len(names)), metadata


def _shares(path: Path, shares: Tensor | None, classes: int) -> Tensor | None:
    if shares is None:
        return None
    if shares.shape != (classes,) or not shares.is_floating_point():
        found = f"{shares.dtype} {tuple(shares.shape)}"
        raise ValueError(f"{path}: {SHARES} must be float ({classes},), got {found}")
    shares = shares.double()
    if not (shares > 0).all():  # also true for NaN
        raise ValueError(f"{path}: {SHARES} must be > 0, got {float(shares.min()):g}")
    if not abs(float(shares.sum()) - 1) <= TOLERANCE:  # also true where one is infinite
        raise ValueError(f"{path}: {SHARES} must have the sum 1, got {float(shares.sum()):.9g}")
    return shares


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
