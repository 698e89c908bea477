"""An encoder as a function of pixels: by OpenVINO, or by torch where that is slower or disagrees.

They are compared on generated pictures: a choice made by looking at a private picture would change
the rows of all others with it. Converted networks are cached on the disk, keyed by everything they
depend on, each a directory in `networks/` of the user's cache, which may be removed at any time.
"""

import contextlib
import hashlib
import io
import itertools
import json
import logging
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from pretrain.cli.output import sync_tree
from pretrain.cli.provenance import versions
from pretrain.encoder import encoder_hash

T = TypeVar("T")
LIMIT = 4 << 30  # size: bytes of all networks; beyond it the oldest are removed
DIGESTS = "digests.json"


def networks() -> Path:
    """The directory: in $XDG_CACHE_HOME, or ~/.cache; see `pretrain.surroundings`."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "blind-averaging" / "networks"


def from_cache(
    made_of: Mapping[str, Any], write: Callable[[Path], None], load: Callable[[Path], T]
) -> T:
    """Loads the network that `write` puts into a directory, in this call or in an earlier one.

    A network that is damaged, or that `load` refuses, is made again. If the cache cannot be
    written, a temporary directory takes its place.

    Args:
        made_of: everything that the network depends on, for JSON.
        write: fills an empty directory.
        load: reads such a directory, which may be removed afterwards.
    """
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:32]
    entry = networks() / key
    if _is_whole(entry):
        with contextlib.suppress(Exception):  # what a foreign library raises
            entry.touch()
            return load(entry)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".", dir=entry.parent))
    except OSError:
        partial = Path(tempfile.mkdtemp())
    try:
        write(partial)
        network = load(partial)
        if partial.parent == entry.parent:
            with contextlib.suppress(OSError):  # a full disk, or another process was first
                _keep(partial, entry)
        return network
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _keep(partial: Path, entry: Path) -> None:
    """Moves a directory to its place, and removes the least recently used ones."""
    (partial / DIGESTS).write_text(json.dumps(_digests(partial)))
    sync_tree(partial)
    shutil.rmtree(entry, ignore_errors=True)
    partial.rename(entry)
    others = sorted(entry.parent.iterdir(), key=lambda path: path.stat().st_mtime)
    sizes = {path: sum(file.stat().st_size for file in path.iterdir()) for path in others}
    for path in others:
        if path != entry and sum(sizes.values()) > LIMIT:
            shutil.rmtree(path, ignore_errors=True)
            del sizes[path]


def _digests(entry: Path) -> dict[str, str]:
    found = {}
    for path in sorted(entry.iterdir()):
        if path.name != DIGESTS:
            with path.open("rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return found


def _is_whole(entry: Path) -> bool:
    try:
        return json.loads((entry / DIGESTS).read_text()) == _digests(entry)
    except (OSError, ValueError):
        return False


Forward = Callable[[Tensor], Tensor]  # (b, 3, h, w) float32 pixels to (b, p) float32 embeddings
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
OPENVINO = {"float32": "f32", "bfloat16": "bf16"}  # its precisions, in our words and its own
MAKERS = ("torch", "timm", "transformers", "openvino")  # of a compiled network
COMPILE_FROM = 100_000  # size: images below which compiling costs more time than it saves


def choose_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return torch.bfloat16 if native else torch.float32


def fast_forward(
    encoder: nn.Module, device: torch.device, dtype: torch.dtype, *, compiled: bool = False
) -> Forward:
    """The encoder in torch: channels last, in `dtype` under autocast, optionally compiled.

    The function's embeddings are on the CPU. It raises ValueError where the network refuses a
    batch.
    """
    model = encoder.eval().to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    run = torch.compile(model) if compiled else model

    def forward(images: Tensor) -> Tensor:
        pixels = images.contiguous(memory_format=torch.channels_last)
        reduced = dtype != torch.float32
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=reduced):
            try:
                return run(pixels).float().cpu()
            except (RuntimeError, AssertionError, ValueError) as error:
                raise ValueError(_refusal(error, tuple(pixels.shape))) from error

    return forward


def _refusal(error: Exception, shape: tuple[int, ...]) -> str:
    """Reason why a network refused a batch: too little memory, or a wrong shape."""
    words = " ".join(str(error).split())[:200]
    if isinstance(error, torch.OutOfMemoryError) or "allocate memory" in words:
        return f"batch_size must be lower for inputs {shape[1:]}, got {shape[0]}: {words}"
    return f"encoder must take inputs {shape[1:]} (see image_size), got: {words}"


def filled_up(forward: Forward, batch: int) -> Forward:
    """Function of up to `batch` pictures, which are filled up to `batch` with black ones.

    Kernels sum in another order for another number of pictures, so a row would depend on the number
    of others in its batch.
    """

    def full(images: Tensor) -> Tensor:
        if len(images) == batch:
            return forward(images)
        black = images.new_zeros(batch - len(images), *images.shape[1:])
        return forward(torch.cat([images, black]))[: len(images)]

    return full


def refusal(compute: str) -> str | None:
    """Reason why OpenVINO cannot compute here in a precision or "auto"; None if it can."""
    if compute not in ("auto", *OPENVINO):
        return f"engine openvino must compute in {' or '.join(OPENVINO)}, got {compute}"
    if find_spec("openvino") is None:
        return "engine openvino must have openvino installed: pip install openvino"
    return None


def compiled_forward(
    encoder: nn.Module,
    compute: str,
    shape: tuple[int, ...],
    check: Callable[[Forward], None],
    digest: str | None = None,
) -> Forward:
    """The encoder compiled by OpenVINO, batch norms folded, for batches of one shape.

    Args:
        encoder: in evaluation mode.
        compute: a precision in `OPENVINO`.
        shape: (b, 3, h, w) of a whole batch.
        check: raises if the function does not give the encoder's embeddings; in float32 a cached
            network that fails is converted again.
        digest: `encoder_hash(encoder)`, if the caller knows it.

    Raises:
        Exception: from `check`, or from OpenVINO if it cannot convert the encoder.
    """
    encoder = encoder.to("cpu").to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    made_of = {
        "engine": "openvino",
        "encoder": digest or encoder_hash(encoder),
        "shape": shape,
        "versions": versions(*MAKERS),
    }

    def load(directory: Path) -> Forward:
        forward = load_openvino(directory, compute, torch.get_num_threads())
        if compute == "float32":
            check(forward)
        return forward

    forward = from_cache(made_of, lambda place: write_openvino(encoder, shape, place), load)
    if compute != "float32":
        check(forward)
    return forward


def _openvino() -> Any:
    """The package, without the telemetry that would report every import over the network."""
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    import openvino

    return openvino


def write_openvino(encoder: nn.Module, shape: tuple[int, ...], directory: Path) -> None:
    """Converts the encoder for batches of this shape, into an empty directory."""
    program, openvino = traced(encoder, (torch.zeros(shape),)), _openvino()
    with quiet():
        model = openvino.convert_model(program)
    openvino.save_model(model, directory / "network.xml", compress_to_fp16=False)


def load_openvino(directory: Path, compute: str, threads: int) -> Forward:
    """Compiles what `write_openvino` wrote, for a precision and so many threads."""
    options = {
        "INFERENCE_PRECISION_HINT": OPENVINO[compute],
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # several shards may share this machine
    }
    network = _openvino().Core().compile_model(directory / "network.xml", "CPU", options)
    return lambda images: torch.from_numpy(network(images.contiguous().numpy())[0])


def traced(
    network: nn.Module, inputs: tuple[Tensor, ...], dynamic_shapes: dict[str, Any] | None = None
) -> ExportedProgram:
    """Traces the network for inputs of these shapes, up to the dynamic ones.

    Raises:
        ValueError: torch cannot trace it.
    """
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(network, inputs, dynamic_shapes=dynamic_shapes)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise ValueError(f"encoder must be one that torch can export, got: {short(error)}") from (
            error
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silences torch's warnings and output while it exports and loads."""
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        for kind in (UserWarning, FutureWarning, DeprecationWarning):
            warnings.filterwarnings("ignore", category=kind)
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(disabled)


def short(error: Exception) -> str:
    """First line of an error of torch's exporters."""
    return str(error).partition("\n")[0][:200]


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
