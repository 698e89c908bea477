"""Choice of the fastest installed engine whose embeddings agree with torch's."""

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import torch
from torch import Tensor, nn

from embed.engines.compiled import COMPILERS, Check, Forward, compiled_forward, refusal
from embed.fast import DTYPES, choose_dtype, fast_forward, filled_up

ENGINES = (*COMPILERS, "torch")  # fastest first
FEW = 1_000  # size: for fewer images torch finishes before a network is converted
# guard: distance from torch's row, over its length; and in a precision that the user names
NEAR, ROUGHLY = 0.01, 0.1


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Engine of an encoder, and its precision."""

    name: str
    compute: str
    forward: Forward  # (n, 3, h, w) float32 pixels to (n, p) float32 embeddings


def choose(
    encoder: nn.Module,
    device: torch.device,
    trial: Callable[[], Tensor],
    *,
    rows: int,
    batch_size: int,
    engine: str = "auto",
    compute: str = "auto",
    compiled: bool = False,
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
        compiled: use torch.compile.
        digest: `encoder_hash(encoder)`, if the caller knows it.

    Raises:
        ValueError: the named engine is not installed, cannot run this encoder, or does not agree.
    """
    if engine not in ("auto", *ENGINES):  # one of a former version, in what it left unfinished
        known = ", ".join(("auto", *ENGINES))
        raise ValueError(
            f"engine must be one of {known} (remove what {engine} began), got {engine}"
        )
    engines, precisions = _candidates(device, rows, engine, compute, compiled=compiled)

    def in_torch(precision: str) -> Forward:
        return fast_forward(encoder, device, DTYPES[precision], compiled=compiled)

    pixels, agrees, last_precision = trial(), None, precisions[-1]
    if engines != ("torch",) or len(precisions) > 1:
        within = NEAR if compute == "auto" else ROUGHLY
        agrees = _agreement(pixels, in_torch("float32")(pixels), within)
    shape = (batch_size, *pixels.shape[1:])
    refused: dict[str, str] = {}  # an engine, or one in a precision, and why
    for precision, name in itertools.product(precisions, engines):
        lacks = name in COMPILERS and precision not in COMPILERS[name].computes
        if name in refused or lacks:
            continue
        last = name == "torch" and precision == last_precision
        check = _checks(pixels, None if last else agrees)
        try:
            if name == "torch":
                forward = in_torch(precision)
                check(forward)
            else:
                if why := refusal(name, precision):
                    raise ValueError(why)
                forward = compiled_forward(name, encoder, precision, shape, check, digest)
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


def one_by_one(forward: Forward) -> Forward:
    """Function that embeds one picture at a time, so that no other picture affects it."""
    return lambda images: torch.cat([forward(image[None]) for image in images])


class Disagreement(ValueError):
    """Embeddings that differ from torch's."""


def _candidates(
    device: torch.device, rows: int, engine: str, compute: str, *, compiled: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Engines and precisions to try, fastest first; refuses impossible combinations."""
    if engine in COMPILERS:
        if device.type != "cpu" or compiled:
            where = "with torch.compile" if compiled else f"on {device}"
            raise ValueError(f"engine must be torch {where}, got {engine}")
        if why := refusal(engine, compute):
            raise ValueError(why)
    few = device.type == "cpu" and rows < FEW
    if engine == "auto":
        engines = ("torch",) if few or compiled or device.type != "cpu" else ENGINES
    else:
        engines = (engine,)
    if compute != "auto":
        return engines, (compute,)
    native = str(choose_dtype(device)).removeprefix("torch.")
    if device.type != "cpu":
        return engines, (native,)
    return engines, ("float32",) if few or native == "float32" else (native, "float32")


def _checks(pixels: Tensor, agrees: Check | None) -> Check:
    """Function that raises if embeddings disagree, or depend on the other pictures."""

    def check(forward: Forward) -> None:
        if agrees is not None:
            agrees(forward)
        moved = pixels.roll(1, 0)
        moved[0] = 1 - moved[0]
        if not torch.equal(forward(pixels)[:-1], forward(moved)[1:]):
            raise Disagreement(
                "embeddings must not depend on a picture's place in its batch nor on the others, "
                "got others elsewhere"
            )

    return check


def _agreement(pixels: Tensor, expected: Tensor, within: float) -> Check:
    """Function that raises if the embeddings of the pixels differ from the expected (b, p).

    Lengths by a share of `within`, directions by a cosine of 1 − `within`².
    """

    def check(forward: Forward) -> None:
        found, wanted = forward(pixels).double(), expected.double()
        lengths = found.norm(dim=1), wanted.norm(dim=1)
        blank = (lengths[0] == 0) & (lengths[1] == 0)
        cosine = ((found * wanted).sum(1) / (lengths[0] * lengths[1])).where(~blank, 1.0).min()
        ratio = (lengths[0] / lengths[1] - 1).abs().where(~blank, 0.0).max()
        least = 1 - within**2
        if not (cosine >= least and ratio <= within):  # so that NaN is refused
            raise Disagreement(
                f"cosines with torch in float32 must be >= {least:g}, lengths within {within:.0%}, "
                f"got {cosine:.5f} and {ratio:.1%}"
            )

    return check
