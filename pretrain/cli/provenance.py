"""The machine behind a number: device, command, hardware, versions."""

import contextlib
import os
import platform
import shlex
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting")

CPU_BATCH, GPU_BATCH = 32, 512  # size: on a CPU small batches keep feature maps in the cache


def usual_device(given: str | None) -> str:
    """The given device, else "cuda" if there is one, else "cpu".

    Raises:
        ValueError: an unknown or missing device.
    """
    import torch

    if given is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.device(given)
    except RuntimeError as error:
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {given}") from error
    try:
        torch.zeros(1, device=given).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        here = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        raise ValueError(
            f"device must be one that is here ({', '.join(here)}), got {given}"
        ) from error
    return given


def usual_batch(device: str) -> int:
    """Pictures per forward pass on a device."""
    return CPU_BATCH if device.startswith("cpu") else GPU_BATCH


def provenance() -> dict[str, object]:
    """Command line, processor and versions behind a result.

    Files outside the working directory appear without their directories, which stay private.
    """
    return {
        "command": shlex.join([*_program(), *map(public_argument, sys.argv[1:])]),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": versions(*LIBRARIES),
    }


def versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of these packages; one that is missing is "not installed"."""
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def public_argument(argument: str) -> str:
    """Argument of a command line; a file outside the working directory is reduced to its name."""
    outside = argument.startswith(("/", ".."))
    return Path(argument).name if outside else argument


def _program() -> list[str]:
    """Words before the arguments: a command, a module, or a script."""
    program, spec = Path(sys.argv[0]), sys.modules["__main__"].__spec__
    if program.suffix != ".py":
        return [program.name]
    if spec is not None:
        return ["python", "-m", spec.name.removesuffix(".__main__")]
    with contextlib.suppress(ValueError):
        return ["python", str(program.resolve().relative_to(Path.cwd()))]
    return ["python", program.name]


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
