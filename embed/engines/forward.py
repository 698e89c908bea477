"""An encoder as a function of pixels: in torch, or compiled for the CPU by OpenVINO."""

import contextlib
import io
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from embed.engines.cache import from_cache
from pretrain.encoder import encoder_hash

Forward = Callable[[Tensor], Tensor]  # (b, 3, h, w) float32 pixels to (b, p) float32 embeddings
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
OPENVINO = {"float32": "f32", "bfloat16": "bf16"}  # its precisions, in our words and its own
MAKERS = ("torch", "timm", "transformers", "openvino")  # of a compiled network
COMPILE_FROM = 100_000  # size: images below which compiling costs more time than it saves
CPU_BATCH, GPU_BATCH = 32, 512  # size: on a CPU small batches keep feature maps in the cache


def choose_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, float32 elsewhere."""
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(False) else torch.float16
    capabilities: Mapping[str, Any] = torch.cpu.get_capabilities()
    native = capabilities.get("amx_bf16") or capabilities.get("avx512_bf16")
    return torch.bfloat16 if native else torch.float32


def choose_batch_size(device: torch.device | str) -> int:
    """Images per forward pass."""
    return CPU_BATCH if torch.device(device).type == "cpu" else GPU_BATCH


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
    if installed("openvino") is None:
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
        "versions": {name: installed(name) for name in MAKERS},
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


def installed(package: str) -> str | None:
    """Version of an installed package; None: it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


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
