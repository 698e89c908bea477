"""Lets torchvision import beside a CPU-only torch.

Its wheel from the package index is built for CUDA; without the CUDA libraries its compiled ops do
not load and `import torchvision` fails with "operator torchvision::nms does not exist". None of
those ops is used here. Where they load, this module changes nothing.
"""

import importlib.util
from pathlib import Path

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


def _declare_missing() -> torch.library.Library | None:
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


_library = _declare_missing()  # held: once collected, the declared ops vanish
