"""Pixels to probabilities as one torch module: preprocessing, encoder, public transform, head."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from pretrain.encoders.base import Concat
from pretrain.intake.decode import covering, squared
from pretrain.preprocess import Preprocess, pair
from train_distributed.one_shot.model import Release

UNIT = 2.0**22  # of Pillow's weights


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
        self.temperature = released.temperature

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._clipped((rows.to(torch.float64) - self.mean) @ self.basis / self.scale)
        if self.directions is not None and self.centre is not None:
            rows = self._clipped((rows @ self.directions - self.centre) / self.length)
        scores = rows @ self.slopes + self.offset
        shares = torch.softmax(scores / self.temperature, 1)
        return scores.argmax(1), shares.to(torch.float32)

    def _clipped(self, features: Tensor) -> Tensor:
        largest = features.abs().amax(1, keepdim=True).clamp_min(1e-300)  # as `embed.clip` does
        squared = (features / largest).square().sum(1, keepdim=True)
        shrink = ((self.bound / squared).sqrt() / largest).clamp_max(1)
        return features * shrink
