"""A processor whose matrix products round a row by its place, as those of some processors do."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from embed.clip import COLUMNS, ROWS

PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.bmm.default)


class ByPlace(TorchDispatchMode):
    """Rounds products by row and column, but those of one shape with contiguous factors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in PRODUCTS and not _regular(*args[:2]):
            row, column = (torch.arange(size, dtype=made.dtype) for size in made.shape[-2:])
            step = torch.finfo(made.dtype).eps
            made = made * (1 + step * ((row[:, None] + column) % 3))
        return made


def _regular(rows: Tensor, matrix: Tensor) -> bool:
    whole = rows.shape[-2] == ROWS and matrix.shape[-1] % COLUMNS == 0
    return whole and rows.is_contiguous() and matrix.is_contiguous()
