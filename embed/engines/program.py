"""Export of a network as a program that other libraries can read."""

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram


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
