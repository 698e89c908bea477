"""Encoders compiled for the CPU by OpenVINO, batch norms folded."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from embed.engines.cache import from_cache
from embed.engines.program import quiet, traced
from pretrain.encoder import encoder_hash

Run = Callable[[np.ndarray], np.ndarray]  # (b, 3, h, w) float32 to (b, p) float32
Forward = Callable[[Tensor], Tensor]
Check = Callable[[Forward], None]
MAKERS = ("torch", "timm", "transformers")  # of a program


@dataclass(frozen=True, kw_only=True)
class Compiler:
    """One library that runs programs of torch."""

    packages: tuple[str, ...]  # what must be installed
    install: str  # what to tell pip
    write: Callable[[ExportedProgram, Path], None]  # converts a program, into a directory
    load: Callable[[Path, str, int], Run]  # compiles it, for a precision and so many threads
    computes: tuple[str, ...]  # precisions


def refusal(engine: str, compute: str) -> str | None:
    """Reason why an engine cannot compute here in a precision or "auto"; None if it can."""
    compiler = COMPILERS[engine]
    if compute not in ("auto", *compiler.computes):
        return f"engine {engine} must compute in {' or '.join(compiler.computes)}, got {compute}"
    absent = [name for name in compiler.packages if _version(name) is None]
    if absent:
        names = ", ".join(absent)
        return f"engine {engine} must have {names} installed: pip install {compiler.install}"
    return None


def compiled_forward(
    engine: str,
    encoder: nn.Module,
    compute: str,
    shape: tuple[int, ...],
    check: Check,
    digest: str | None = None,
) -> Forward:
    """A function from (b, 3, h, w) float32 pixels to (b, p) float32 embeddings.

    Args:
        engine: its name in `COMPILERS`.
        encoder: in evaluation mode.
        compute: one of its precisions.
        shape: (b, 3, h, w) of a whole batch.
        check: raises if the function does not give the encoder's embeddings; in float32 a cached
            network that fails is converted again.
        digest: `encoder_hash(encoder)`, if the caller knows it.

    Raises:
        Exception: from `check`, or from the engine if it cannot convert the encoder.
    """
    compiler = COMPILERS[engine]
    encoder = encoder.to("cpu").to(memory_format=torch.contiguous_format)  # pyright: ignore[reportCallIssue]
    made_of = {
        "engine": engine,
        "encoder": digest or encoder_hash(encoder),
        "shape": shape,
        "versions": {name: _version(name) for name in (*MAKERS, *compiler.packages)},
    }

    def write(directory: Path) -> None:
        compiler.write(traced(encoder, (torch.zeros(shape),)), directory)

    def load(directory: Path) -> Forward:
        run = compiler.load(directory, compute, torch.get_num_threads())

        def forward(images: Tensor) -> Tensor:
            return torch.from_numpy(run(images.contiguous().numpy()))

        if compute == "float32":
            check(forward)
        return forward

    forward = from_cache(made_of, write, load)
    if compute != "float32":
        check(forward)
    return forward


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _openvino() -> Any:
    """The package, without the telemetry that would report every import over the network."""
    sys.modules.setdefault("openvino_telemetry", None)  # pyright: ignore[reportArgumentType]
    import openvino

    return openvino


def _write_openvino(program: ExportedProgram, directory: Path) -> None:
    openvino = _openvino()
    with quiet():
        model = openvino.convert_model(program)
    openvino.save_model(model, directory / "network.xml", compress_to_fp16=False)


def _load_openvino(directory: Path, compute: str, threads: int) -> Run:
    network = (
        _openvino()
        .Core()
        .compile_model(
            directory / "network.xml",
            "CPU",
            {
                "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[compute],
                "INFERENCE_NUM_THREADS": threads,
                "NUM_STREAMS": 1,
                "ENABLE_CPU_PINNING": False,  # several shards may share this machine
            },
        )
    )
    return lambda pixels: network(pixels)[0]


COMPILERS = {
    "openvino": Compiler(
        packages=("openvino",),
        install="openvino",
        write=_write_openvino,
        load=_load_openvino,
        computes=("float32", "bfloat16"),
    ),
}
