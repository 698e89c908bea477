"""Choice between OpenVINO and torch: the faster one, if its embeddings agree with torch's.

They are compared on generated pictures: a choice made by looking at a private picture would change
the rows of all others with it.
"""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import torch
from torch import Tensor, nn

from embed.engines.forward import (
    COMPILE_FROM,
    DTYPES,
    OPENVINO,
    Forward,
    choose_dtype,
    compiled_forward,
    fast_forward,
    filled_up,
    refusal,
)

ENGINES = ("openvino", "torch")  # the faster first
FEW = 1_000  # size: for fewer images torch finishes before a network is converted
# guard: distance from torch's row, over its length; and in a precision that the user names
NEAR, ROUGHLY = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Engine of an encoder, and its precision."""

    name: str
    compute: str
    forward: Forward


def choose(
    encoder: nn.Module,
    device: torch.device,
    trial: Callable[[], Tensor],
    *,
    rows: int,
    batch_size: int,
    engine: str = "auto",
    compute: str = "auto",
    digest: str | None = None,
) -> Engine:
    """Builds the named engine, or the fastest one that is installed.

    A GPU and few images are left to torch, few images in float32. Elsewhere engines and precisions
    are compared with torch in float32 on generated pictures; those that do not agree are refused,
    and stderr says why. Also refused are those whose embedding of a picture depends, in any bit, on
    its place in the batch or on the other pictures; torch then embeds the pictures one by one.

    Args:
        encoder: in evaluation mode.
        device: where to compute.
        trial: gives (b, 3, h, w) public pixels on that device, b the batch size.
        rows: number of all images to embed.
        batch_size: images per forward pass; fewer are filled up with black ones.
        engine: "auto", or one of `ENGINES`.
        compute: "auto", "float32", "bfloat16" or "float16".
        digest: `encoder_hash(encoder)`, if the caller knows it.

    Raises:
        ValueError: the named engine is not installed, cannot run this encoder, or does not agree.
    """
    if engine not in ("auto", *ENGINES):  # one of a former version, in what it left unfinished
        known = ", ".join(("auto", *ENGINES))
        raise ValueError(
            f"engine must be one of {known} (remove what {engine} began), got {engine}"
        )
    engines, precisions = _candidates(device, rows, engine, compute)

    def in_torch(precision: str) -> Forward:
        compiled = compiles(device, rows)
        return fast_forward(encoder, device, DTYPES[precision], compiled=compiled)

    pixels, wanted, last_precision = trial(), None, precisions[-1]
    if engines != ("torch",) or len(precisions) > 1:
        wanted = in_torch("float32")(pixels)
    within = NEAR if compute == "auto" else ROUGHLY
    refused: dict[str, str] = {}  # an engine, or one in a precision, and why
    for precision, name in itertools.product(precisions, engines):
        if name in refused or (name == "openvino" and precision not in OPENVINO):
            continue
        last = name == "torch" and precision == last_precision

        def check(forward: Forward, expected: Tensor | None = None if last else wanted) -> None:
            refuse_other_rows(forward, pixels, expected, within)

        try:
            if name == "torch":
                forward = in_torch(precision)
                check(forward)
            else:
                if why := refusal(precision):
                    raise ValueError(why)
                shape = (batch_size, *pixels.shape[1:])
                forward = compiled_forward(encoder, precision, shape, check, digest)
        except Exception as error:  # converters of foreign networks raise anything
            rough = isinstance(error, Disagreement) and precision != "float32"
            what = f"{name} in {precision}" if rough else name
            refused[what] = " ".join(str(error).split())[:200]
            if not (last and isinstance(error, Disagreement)):
                continue
            forward = one_by_one(in_torch(precision))
        if engines != ("torch",) or refused:
            words = "".join(f"; not {what}: {why}" for what, why in refused.items())
            print(f"engine: {name} {version(name)}, {precision}{words}", file=sys.stderr)
        return Engine(name=name, compute=precision, forward=filled_up(forward, batch_size))
    raise ValueError(f"engine {engine} must run this encoder, got: {'; '.join(refused.values())}")


def compiles(device: torch.device, rows: int) -> bool:
    """Whether torch compiles a network for so many images."""
    return device.type == "cuda" and rows >= COMPILE_FROM


def one_by_one(forward: Forward) -> Forward:
    """Function that embeds one picture at a time, so that no other picture affects it."""
    return lambda images: torch.cat([forward(image[None]) for image in images])


class Disagreement(ValueError):
    """Embeddings that differ from torch's, or by the other pictures of a batch."""


def _candidates(
    device: torch.device, rows: int, engine: str, compute: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Engines and precisions to try, fastest first; refuses impossible combinations."""
    cpu = device.type == "cpu"
    if engine == "openvino":
        if not cpu:
            raise ValueError(f"engine must be torch on {device}, got {engine}")
        if why := refusal(compute):
            raise ValueError(why)
    few = cpu and rows < FEW
    engines = (engine,)
    if engine == "auto":
        engines = ("torch",) if few or not cpu else ENGINES
    if compute != "auto":
        return engines, (compute,)
    native = str(choose_dtype(device)).removeprefix("torch.")
    if not cpu:
        return engines, (native,)
    return engines, ("float32",) if few or native == "float32" else (native, "float32")


def refuse_other_rows(
    forward: Forward, pixels: Tensor, wanted: Tensor | None, within: float
) -> None:
    """Raises Disagreement if embeddings are not as they should be.

    Args:
        forward: the engine.
        pixels: (b, 3, h, w).
        wanted: (b, p) their embeddings; None: any.
        within: share by which lengths may differ; directions may by a cosine of 1 − `within`².
    """
    found = forward(pixels)
    if wanted is not None:
        ours, theirs = found.double(), wanted.double()
        lengths = ours.norm(dim=1), theirs.norm(dim=1)
        blank = (lengths[0] == 0) & (lengths[1] == 0)
        cosine = ((ours * theirs).sum(1) / (lengths[0] * lengths[1])).where(~blank, 1.0).min()
        ratio = (lengths[0] / lengths[1] - 1).abs().where(~blank, 0.0).max()
        least = 1 - within**2
        if not (cosine >= least and ratio <= within):  # so that NaN is refused
            raise Disagreement(
                f"cosines with torch in float32 must be >= {least:g}, lengths within {within:.0%}, "
                f"got {cosine:.5f} and {ratio:.1%}"
            )
    moved = pixels.roll(1, 0)
    moved[0] = 1 - moved[0]
    if not torch.equal(found[:-1], forward(moved)[1:]):
        raise Disagreement(
            "embeddings must not depend on a picture's place in its batch nor on the others, "
            "got others elsewhere"
        )


def trial_pictures(count: int, height: int, width: int) -> Tensor:
    """(count, 3, height, width) uint8 pictures, always the same.

    They are clouds: the spectrum falls as 1/frequency, like that of natural images, and channels
    are correlated.
    """
    draw = torch.Generator().manual_seed(7)
    rows = torch.fft.fftfreq(height)[:, None] * height
    columns = torch.fft.rfftfreq(width) * width
    amplitude = 1 / torch.hypot(rows, columns).clamp(min=1)
    noise = torch.randn(count, 4, height, width, generator=draw)
    clouds = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    clouds = clouds[:, :3] / 2 + clouds[:, 3:]
    spread = clouds.square().mean((1, 2, 3), keepdim=True).sqrt()
    return (128 + 55 * clouds / spread.clamp(min=1e-6)).clamp(0, 255).to(torch.uint8)
