"""Provenance of measured numbers: command, hardware, versions."""

import contextlib
import os
import platform
import shlex
import sys
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "numpy", "scipy", "dp-accounting")


def provenance() -> dict[str, object]:
    """Command line, processor and versions behind a result.

    Files outside the working directory appear without their directories, which stay private.
    """
    return {
        "command": shlex.join([*_program(), *map(public_argument, sys.argv[1:])]),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {"python": platform.python_version()} | {n: version(n) for n in LIBRARIES},
    }


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


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
