"""Lets torchvision be imported with a CPU-only torch.

Its wheel from the package index is built for CUDA; without the CUDA libraries its compiled ops do
not load and `import torchvision` fails with "operator torchvision::nms does not exist". None of
those ops is used here. Where they load, this module changes nothing. It acts when torchvision is
about to be imported, so that commands which need neither it nor torch do not load them.
"""

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _ops_library() -> str | None:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_C.*")) + sorted(
        Path(spec.origin).parent.glob("_C*.so")
    )
    return str(found[0]) if found else None


def _declare_missing() -> "torch.library.Library | None":
    import torch

    path = _ops_library()
    if path is not None:
        try:
            torch.ops.load_library(path)
        except OSError:
            pass
        else:
            return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + SIGNATURE)
    return library


class _BeforeTorchvision(MetaPathFinder):
    """Finder that finds nothing: before the first import of torchvision it declares missing ops."""

    library: "torch.library.Library | None" = None  # held: once collected, the declared ops vanish

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == "torchvision" and self in sys.meta_path:
            sys.meta_path.remove(self)
            self.library = _declare_missing()


_before = _BeforeTorchvision()
if "torchvision" not in sys.modules:
    sys.meta_path.insert(0, _before)
