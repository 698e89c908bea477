"""Environment of other libraries: no telemetry, a folder for caches, torchvision with any torch.

`pretrain` sets it before any of them is imported; processes that this one starts inherit the first
two.

torchvision's wheel from the package index is built for CUDA; without the CUDA libraries its
compiled ops do not load and `import torchvision` fails with "operator torchvision::nms does not
exist". None of those ops is used here. Where they load, nothing is changed.
"""

import atexit
import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

SILENCE = {"DO_NOT_TRACK": "1", "ORT_DISABLE_TELEMETRY": "1"}  # ONNX Runtime heeds its own alone


def silence() -> None:
    """Turns the telemetry of other libraries off, whatever the environment said before.

    Without it ONNX Runtime writes a device id and a queue of events below the home folder.
    """
    os.environ.update(SILENCE)


def provide_caches() -> None:
    """Names a place for caches where there is no home folder that can hold them.

    It is $XDG_CACHE_HOME, or a temporary folder, which is named on stderr and removed at the end of
    this process. A user id that no file knows has no home; `~` is then a folder of that name in
    the working directory for some libraries, and an error for others.
    """
    home, place = os.path.expanduser("~"), os.environ.get("XDG_CACHE_HOME")
    known = os.path.isabs(home) and os.path.isdir(home)
    if known and (os.path.isdir(f"{home}/.cache") or os.access(home, os.W_OK | os.X_OK)):
        return
    with contextlib.suppress(OSError):  # no temporary folder either: whoever needs a cache says so
        place = place or _temporary()
        os.environ["XDG_CACHE_HOME"] = place
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(place, "matplotlib"))
        if not known:
            os.environ["HOME"] = place


def _temporary() -> str:
    place, process = tempfile.mkdtemp(prefix="blind-averaging-"), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # a forked child leaves it to its parent
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    print(
        f"caches are in {place} until this ends, for there is no home folder that can be written; "
        "XDG_CACHE_HOME names a lasting place",
        file=sys.stderr,
    )
    return place


silence()
provide_caches()


if TYPE_CHECKING:
    import torch

SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


def _declare_missing() -> "torch.library.Library | None":
    import torch

    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent if spec and spec.origin else None
    for compiled in sorted(folder.glob("_C.*"))[:1] if folder else ():
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(compiled))
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
