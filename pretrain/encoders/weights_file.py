"""Files of weights, read without running any code of theirs: tensors by their full names.

A trainer's checkpoint holds dictionaries within dictionaries, so a tensor's name begins with their
keys: `state_dict.module.encoder_q.conv1.weight`. Objects of classes that torch does not know to be
harmless, such as a trainer's arguments, are replaced by empty ones of a class of ours.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pretrain.tensor_file import read_tensors

# What torch.compile, FSDP and activation checkpointing put into names, anywhere in them.
WRAPPERS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
DEPTH = 12  # of dictionaries; what holds itself ends there
SAVE = "save its model.state_dict() with torch.save or as safetensors"
SIGNS = {  # first bytes of what is often taken for weights
    b"\x89HDF": "an HDF5 file as Keras writes it",
    b"version https://git-lfs": "a Git LFS pointer, so type git lfs pull",
    b"<": "a web page",
    b"{": "JSON, perhaps the index of several files",
}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors or `torch.save` file by their full names, wrappers left out.

    Args:
        path: the file; `FILE#KEY` for those below a key or prefix alone.

    Raises:
        ValueError: missing, damaged, without tensors, or a tensor by two names.
    """
    below = ""
    if not path.exists() and "#" in path.name:
        file, _, below = str(path).rpartition("#")
        path = Path(file)
    if not path.is_file():
        raise ValueError(f"weights must be an existing file, got {path}")
    found: dict[str, Tensor] = {}
    for parts, tensor in _tensors(_content(path)):
        name = ".".join(part for part in parts if part not in WRAPPERS)
        if name in found:
            raise ValueError(f"{path} must hold {name} once, got two tensors of that name")
        found[name] = tensor
    kept = {name: t for name, t in found.items() if not below or name.startswith(f"{below}.")}
    if not kept:
        keys = ", ".join(sorted({name.partition(".")[0] for name in found})[:8])
        raise ValueError(
            f"{path} must hold tensors below {below}, got them below {keys}"
            if found
            else f"{path} must hold tensors, got none: {SAVE}"
        )
    return kept


class StandIn(dict[Any, Any]):
    """Object of a foreign class: keeps its items, and takes and ignores all else."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __setstate__(self, _: Any) -> None:
        pass


def _content(path: Path) -> Any:
    with path.open("rb") as file:
        start = file.read(32)
    if path.suffix == ".safetensors" or start[8:9] == b"{":
        return read_tensors(path, "readable weights")[0]
    for sign, words in SIGNS.items():
        if start.lstrip().startswith(sign):
            raise ValueError(f"{path} must be readable weights, got {words}")
    try:
        with torch.serialization.safe_globals(_stand_ins(path)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the format's age
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in the zip or the unpickler
        raise ValueError(f"{path} must be readable weights, got {_reason(error)}") from error
    if isinstance(content, StandIn) and not content:
        kind = type(content).__name__
        raise ValueError(f"{path} must hold weights alone, got a whole {kind}: {SAVE}")
    return {"": content} if isinstance(content, Tensor) else content


def _stand_ins(path: Path) -> list[Any]:
    """A class of ours for each of the file's that torch would refuse."""
    try:
        foreign = torch.serialization.get_unsafe_globals_in_checkpoint(str(path))
    except Exception:  # no zip, or a damaged one
        return []
    return [(type(name, (StandIn,), {}), name) for name in foreign]


def _reason(error: Exception) -> str:
    """Words of torch's error, without its advice to load what may run code."""
    text = str(error)
    if "TorchScript" in text:
        return f"a TorchScript program: {SAVE}"
    found = re.search(r"nsupported (?:global: GLOBAL|GLOBAL|class) (\S+)", text)
    if found:
        return f"a {found[1]}, which is more than weights: {SAVE}"
    if "weights_only" in text or "Weights only" in text:
        return f"a pickle of another kind: {SAVE}"
    return " ".join(text.split())[:200] or type(error).__name__


def _tensors(value: Any, names: tuple[str, ...] = ()) -> Iterator[tuple[list[str], Tensor]]:
    if isinstance(value, Tensor):
        yield ".".join(names).split("."), value
    elif isinstance(value, Mapping) and len(names) < DEPTH:
        for key, inner in value.items():
            yield from _tensors(inner, (*names, str(key)))
