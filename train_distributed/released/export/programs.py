"""A released model from pixels on, as a torch.export program or an ONNX file; both are compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from embed.engines import fast_forward, quiet, short, traced
from pretrain import check
from pretrain.intake.decode import squared
from pretrain.preprocess import pair
from train_distributed.one_shot.model import UNKNOWN, Release, probabilities
from train_distributed.released.encoder import encoding_of
from train_distributed.released.export.network import PixelNetwork

OUTPUTS = ("class", "probabilities")
FACTS = ("epsilon", "delta", "neighbouring", "unit", "suitable_for_release", "prior", "class_prior")
COMPARED, SEED = 16, 0  # pictures
Run = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # pixels to classes, probabilities


def picture_size(released: Release, asked: tuple[int, int] | None) -> tuple[int, int]:
    """(h, w) of the pictures that an export takes: as asked, or those that the model learned from.

    Raises ValueError if nobody knows.
    """
    known = encoding_of(released).preprocess.pictures
    if asked is None and known is None:
        raise ValueError("input_size must be given for a model that knows none, got none")
    size = asked or pair(known or 0)
    if min(size) < 1 or max(size) > 8192:
        raise ValueError(f"input_size must be in [1, 8192], got {size[0]} x {size[1]}")
    return size


def trace(released: Release, encoder: nn.Module, size: tuple[int, int]) -> ExportedProgram:
    """The program for any number of (3, h, w) uint8 pictures; raises ValueError if torch cannot."""
    preprocess = encoding_of(released).preprocess
    network = PixelNetwork(released, encoder.float().eval(), preprocess, size).eval()
    shown = torch.zeros(3, 3, *size, dtype=torch.uint8)
    shapes = {"pixels": {0: Dim("batch", min=1)}}
    return traced(network, (shown,), shapes)


def described(released: Release, size: tuple[int, int]) -> dict[str, Any]:
    """Class names, promise, encoder, input and output, ready for JSON: the file carries them."""
    report = released.report
    return {
        "class_names": list(released.class_names),
        "method": released.method,
        **{name: report[name] for name in FACTS if name in report},
        "encoding": encoding_of(released).to_json(),
        "probabilities": report.probabilities or UNKNOWN,
        "input": f"pixels: uint8 (batch, 3, {size[0]}, {size[1]}), RGB",
        "output": "class: int64 (batch,); probabilities: float32 (batch, classes)",
    }


def save_torch(program: ExportedProgram, told: dict[str, Any], path: Path) -> None:
    """Writes the program as a .pt2 archive; its facts are the extra file release.json."""
    with quiet():
        torch.export.save(program, path, extra_files={"release.json": json.dumps(told)})


def run_torch(path: Path) -> Run:
    """The program of a .pt2 archive."""
    with quiet():
        module = torch.export.load(path).module()

    def run(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            classes, shares = module(torch.from_numpy(pixels))
        return classes.numpy(), shares.numpy()

    return run


def save_onnx(program: ExportedProgram, told: dict[str, Any], path: Path) -> None:
    """Writes the program as one ONNX file; its facts are the model's metadata: words, or JSON.

    Raises ValueError if onnx or onnxscript is not installed, or an operation has no ONNX form.
    """
    check.installed("onnxscript", "format onnx", extra="export")
    try:
        with quiet():
            converted = torch.onnx.export(
                program, input_names=["pixels"], output_names=OUTPUTS, verbose=False
            )
    except torch.onnx.errors.OnnxExporterError as error:
        raise ValueError(f"model must be one that ONNX can express, got: {short(error)}") from error
    assert converted is not None
    text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in told.items()}
    converted.model.metadata_props.update(text)
    converted.save(path, external_data=False)


def run_onnx(path: Path) -> Run:
    """An ONNX file in onnxruntime, on the CPU; raises ValueError if that is not installed."""
    onnxruntime = check.installed("onnxruntime", "format onnx", extra="export")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        classes, shares = session.run(list(OUTPUTS), {"pixels": pixels})
        return np.asarray(classes), np.asarray(shares)

    return run


def largest_difference(
    released: Release, encoder: nn.Module, run: Run, pixels: np.ndarray
) -> tuple[float, int]:
    """Largest difference of a probability from `predict`, and how many classes differ.

    Args:
        released: the model.
        encoder: that made its embeddings.
        run: the file, in its own runtime.
        pixels: (n, 3, h, w) uint8.
    """
    preprocess = encoding_of(released).preprocess
    forward = fast_forward(encoder, torch.device("cpu"), torch.float32)
    size = preprocess.pictures
    stored = pixels.transpose(0, 2, 3, 1)
    if size is not None and stored.shape[1:3] != pair(size):
        stored = np.stack([squared(np.ascontiguousarray(each), size) for each in stored])
    taken = np.ascontiguousarray(stored.transpose(0, 3, 1, 2))
    scores = released.scores(forward(preprocess(torch.from_numpy(taken))))
    shares = probabilities(scores, released.temperature).numpy()
    classes, found = run(pixels)
    return float(np.abs(found - shares).max()), int((classes != scores.argmax(1).numpy()).sum())


def some_pictures(size: tuple[int, int]) -> np.ndarray:
    """(16, 3, h, w) uint8: noise of several strengths, black and white."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (COMPARED, 3, *size))
    strength = np.linspace(0, 1, COMPARED)[:, None, None, None]
    grey = np.linspace(0, 255, COMPARED)[:, None, None, None]
    return np.round(strength * pixels + (1 - strength) * grey).astype(np.uint8)
