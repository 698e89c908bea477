"""Weights from files, checked tensor by tensor."""

from pathlib import Path

import torch
from torch import Tensor, nn

from pretrain.tensor_file import read_tensors

CLASSIFIERS = {"classifier", "fc", "_fc", "head"}


def read_weights(path: Path) -> dict[str, Tensor]:
    """Reads a flat state dict from safetensors or a `torch.save` file, weights only.

    Raises:
        ValueError: missing, damaged, or not a mapping of names to tensors.
    """
    if not path.is_file():
        raise ValueError(f"weights must be an existing file, got {path}")
    if path.suffix == ".safetensors":
        return read_tensors(path, "readable weights")[0]
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file fails in the zip or the unpickler
        raise ValueError(f"{path} must be readable weights, got: {error}") from error
    state = state.get("state_dict", state) if isinstance(state, dict) else state
    if not isinstance(state, dict) or not all(isinstance(t, Tensor) for t in state.values()):
        raise ValueError(f"{path} must be a state dict of tensors, got {type(state).__name__}")
    return state


def load_weights(module: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Loads `tensors` into `module`, each name and shape checked, floats converted to its dtype.

    Raises:
        ValueError: naming `where`, the first tensor that does not fit and why.
    """
    own = module.state_dict()
    for name in sorted(own.keys() | tensors.keys()):
        if name not in tensors:
            raise ValueError(f"{where} must hold {name}, got {len(tensors)} other tensors")
        if name not in own:
            raise ValueError(f"{where} must fit {type(module).__name__}, got unknown {name}")
        if own[name].shape != tensors[name].shape:
            shapes = f"{tuple(own[name].shape)}, got {tuple(tensors[name].shape)}"
            raise ValueError(f"{where}: {name} must have shape {shapes}")
        if not torch.isfinite(tensors[name]).all():
            raise ValueError(f"{where}: {name} must be finite, got NaN or infinite weights")
    module.load_state_dict({name: tensors[name].to(own[name].dtype) for name in own})
