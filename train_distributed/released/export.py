"""A released model from pixels on, as a torch.export program or an ONNX file; both are compared."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from embed.engines import fast_forward, quiet, short, traced
from pretrain import check
from pretrain.encoders.base import Concat
from pretrain.intake.decode import covering, squared
from pretrain.preprocess import Preprocess, pair
from train_distributed.one_shot.model import UNKNOWN, Release, probabilities
from train_distributed.released.pictures import encoding_of

OUTPUTS = ("class", "probabilities")
FACTS = ("epsilon", "delta", "neighbouring", "unit", "suitable_for_release", "prior", "class_prior")
COMPARED, SEED = 16, 0  # pictures
Run = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # pixels to classes, probabilities
UNIT = 2.0**22  # of Pillow's weights


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
        "output": "class: int64 (batch, findings) of 0 and 1, at a probability of a half; "
        "probabilities: float32 (batch, findings), each by itself"
        if released.findings
        else "class: int64 (batch,); probabilities: float32 (batch, classes)",
    }


def save_torch(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
    """Writes the program as a .pt2 archive; its facts are the extra file release.json."""
    with quiet():
        torch.export.save(program, path, extra_files={"release.json": json.dumps(facts)})


def run_torch(path: Path) -> Run:
    """The program of a .pt2 archive."""
    with quiet():
        module = torch.export.load(path).module()

    def run(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.inference_mode():
            classes, shares = module(torch.from_numpy(pixels))
        return classes.numpy(), shares.numpy()

    return run


def save_onnx(program: ExportedProgram, facts: dict[str, Any], path: Path) -> None:
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
    text = {k: v if isinstance(v, str) else json.dumps(v) for k, v in facts.items()}
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
    classes, found = run(pixels)
    if released.findings:
        shares = torch.sigmoid(scores / released.temperature).numpy()
        differ = (classes != (scores > 0).numpy()).any(1)
    else:
        shares = probabilities(scores, released.temperature).numpy()
        differ = classes != scores.argmax(1).numpy()
    return float(np.abs(found - shares).max()), int(differ.sum())


def some_pictures(size: tuple[int, int]) -> np.ndarray:
    """(16, 3, h, w) uint8: noise of several strengths, black and white."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (COMPARED, 3, *size))
    strength = np.linspace(0, 1, COMPARED)[:, None, None, None]
    grey = np.linspace(0, 255, COMPARED)[:, None, None, None]
    return np.round(strength * pixels + (1 - strength) * grey).astype(np.uint8)


class PixelNetwork(nn.Module):
    """(n, 3, h, w) uint8 to (n,) int64 classes and (n, K) float32 probabilities.

    The encoder computes in float32, as `predict --compute float32` does, the rest in float64.

    Args:
        released: the model.
        encoder: that made its embeddings.
        preprocess: as for its embeddings.
        size: (h, w) of the pictures, which are brought to the size that `preprocess` knows.
    """

    def __init__(
        self, released: Release, encoder: nn.Module, preprocess: Preprocess, size: tuple[int, int]
    ) -> None:
        super().__init__()
        taken = size if preprocess.pictures is None else pair(preprocess.pictures)
        self.brought = nn.Identity() if taken == size else _Brought(size, taken)
        stored = torch.zeros(1, 3, *taken, dtype=torch.uint8)
        self.pixels = _Pixels(preprocess, stored)
        if isinstance(encoder, Concat):
            images = preprocess(stored)
            encoder = copy.copy(encoder)
            scaled = [_Pixels(part.scaled, images) for part in encoder.prepared]
            self.scaled = nn.ModuleList(scaled)
            encoder.scaled = list(scaled)
        self.encoder = encoder
        self.head = _Head(released)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Classes and probabilities."""
        return self.head(self.encoder(self.pixels(self.brought(pixels))))


class _Brought(nn.Module):
    """Pictures of one size brought to another as `pretrain.intake.decode.squared` does.

    Pillow scales one side after the other, with weights of 22 bits, and rounds to 8 bits after
    each: sums of whole numbers below 2^53, so float64 comes to the same pixels. Which side is first
    depends on its version and the sizes, so it is found by trying.

    Args:
        size: (h, w) of the pictures.
        to: (h, w) that comes out.
    """

    rows: Tensor
    columns: Tensor
    upright_first = False

    def __init__(self, size: tuple[int, int], to: tuple[int, int]) -> None:
        super().__init__()
        for name, side, scaled, kept in zip(
            ("rows", "columns"), size, covering(*size, to), to, strict=True
        ):
            first = (scaled - kept) // 2
            weights = pillow_weights(side, scaled)[first : first + kept]
            self.register_buffer(name, torch.from_numpy(weights))
        noise = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
        tried = self(torch.from_numpy(noise.transpose(2, 0, 1)[None].copy()))[0]
        self.upright_first = not np.array_equal(tried.permute(1, 2, 0), squared(noise, to))

    def forward(self, pixels: Tensor) -> Tensor:
        """(n, 3, *size) uint8 to (n, 3, *to) whole float32 in [0, 255]."""
        x = pixels.to(torch.float64)
        if self.upright_first:
            x = _whole(_whole(self.rows @ x) @ self.columns.T)
        else:
            x = _whole(self.rows @ _whole(x @ self.columns.T))
        return x.to(torch.float32)


def _whole(x: Tensor) -> Tensor:
    return (x / UNIT + 0.5).floor().clamp(0, 255)


def pillow_weights(side: int, target: int) -> np.ndarray:
    """(target, side) float64 whole weights of Pillow's bicubic scaling, in units of 2^-22."""
    scale = side / target
    stretch = max(scale, 1.0)
    centre = (np.arange(target)[:, None] + 0.5) * scale
    first = np.maximum(0, (centre - 2 * stretch + 0.5).astype(int))
    last = np.minimum(side, (centre + 2 * stretch + 0.5).astype(int))
    place = np.arange(side)[None]
    x = np.abs((place - centre + 0.5) / stretch)
    near, far = (1.5 * x - 2.5) * x * x + 1, (((x - 5) * x + 8) * x - 4) * -0.5
    weights = np.where(x < 1, near, np.where(x < 2, far, 0.0))
    weights *= (place >= first) & (place < last)
    weights = weights / weights.sum(1, keepdims=True) * UNIT
    return np.trunc(weights + np.copysign(0.5, weights))


class _Pixels(nn.Module):
    """Preprocessing of pictures of one size, in which every scaling is two fixed products.

    Few runtimes know torch's bicubic interpolation with antialiasing; all of them multiply.
    """

    def __init__(self, preprocess: Callable[[Tensor], Tensor], example: Tensor) -> None:
        super().__init__()
        self.preprocess = preprocess

        def collected(x: Tensor, size: tuple[int, int], mode: str, antialias: bool) -> Tensor:
            for side, target in zip(x.shape[-2:], size, strict=True):
                matrix = scaling_matrix(side, target, mode, antialias=antialias)
                self.register_buffer(_name(side, target, mode, antialias), matrix)
            return x.new_zeros(*x.shape[:-2], *size)

        with _Scaling(collected):
            preprocess(example)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 3, h, w) to what the encoder takes."""
        matrices = dict(self.named_buffers())

        def multiplied(x: Tensor, size: tuple[int, int], mode: str, antialias: bool) -> Tensor:
            rows, columns = (
                matrices[_name(side, target, mode, antialias)]
                for side, target in zip(x.shape[-2:], size, strict=True)
            )
            return rows @ x @ columns.T

        with _Scaling(multiplied):
            return self.preprocess(images)


class _Scaling(TorchFunctionMode):
    """Inside it, interpolation of pictures goes to `scaled`."""

    def __init__(self, scaled: Callable[[Tensor, tuple[int, int], str, bool], Tensor]) -> None:
        super().__init__()
        self.scaled = scaled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is not functional.interpolate:
            return func(*args, **given)
        return self.scaled(args[0], given["size"], given["mode"], given.get("antialias", False))


def _name(side: int, target: int, mode: str, antialias: bool) -> str:
    return f"{mode.replace('-', '_')}_{side}_to_{target}" + "_antialiased" * antialias


def scaling_matrix(side: int, target: int, mode: str, *, antialias: bool) -> Tensor:
    """(target, side) float32 weights of torch's interpolation along one side of a picture."""
    if side == target:
        return torch.eye(side)
    options: dict[str, Any] = {"antialias": True} if antialias else {}
    identity = torch.eye(side)[None, None]
    return functional.interpolate(identity, size=(target, side), mode=mode, **options)[0, 0]


class _Head(nn.Module):
    """`Release.scores` and `predict_proba` of finite float32 rows, without a loop over rows."""

    mean: Tensor
    basis: Tensor
    scale: Tensor
    directions: Tensor | None
    centre: Tensor | None
    slopes: Tensor
    offset: Tensor

    def __init__(self, released: Release) -> None:
        super().__init__()
        transform = released.transform
        for name in ("mean", "basis", "scale"):
            self.register_buffer(name, getattr(transform, name).double().contiguous())
        self.register_buffer("directions", transform.directions)
        self.register_buffer("centre", transform.centre)
        self.length = transform.length
        self.register_buffer("slopes", released.weights[1:].contiguous())
        self.register_buffer("offset", released.weights[0] * transform.constant)
        self.bound = transform.clip_norm**2 - transform.constant**2
        self.temperature, self.findings = released.temperature, released.findings

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._clipped((rows.to(torch.float64) - self.mean) @ self.basis / self.scale)
        if self.directions is not None and self.centre is not None:
            rows = self._clipped((rows @ self.directions - self.centre) / self.length)
        scores = rows @ self.slopes + self.offset
        if self.findings:
            shares = torch.sigmoid(scores / self.temperature)
            return (scores > 0).to(torch.int64), shares.to(torch.float32)
        shares = torch.softmax(scores / self.temperature, 1)
        return scores.argmax(1), shares.to(torch.float32)

    def _clipped(self, features: Tensor) -> Tensor:
        largest = features.abs().amax(1, keepdim=True).clamp_min(1e-300)  # as `embed.clip` does
        squared = (features / largest).square().sum(1, keepdim=True)
        shrink = ((self.bound / squared).sqrt() / largest).clamp_max(1)
        return features * shrink
