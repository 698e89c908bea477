"""SimCLRv2 weights from TensorFlow: every variable used exactly once, every shape checked."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from pretrain import check
from pretrain.cli.output import new_file
from pretrain.encoders.weights import COUNT, load_weights
from pretrain.simclr_v2 import SimCLRv2, build_simclr_v2

SCOPE = "base_model/"
HEADS = ("head_contrastive/", "head_supervised/")
SLOTS = ("/Momentum", "/Adam", "/Adam_1", "/ExponentialMovingAverage")
COUNTERS = ("global_step", "beta1_power", "beta2_power")
NORM_VARIABLES = {  # TensorFlow -> PyTorch
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def variable_map(network: nn.Module) -> dict[str, str]:
    """TensorFlow variable name -> PyTorch tensor name, by order of creation."""
    mapping: dict[str, str] = {}
    convolutions = norms = 0
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            mapping[f"{SCOPE}conv2d{_suffix(convolutions)}/kernel"] = f"{name}.weight"
            convolutions += 1
        elif isinstance(module, nn.BatchNorm2d):
            layer = f"{SCOPE}batch_normalization{_suffix(norms)}"
            mapping |= {f"{layer}/{tf}": f"{name}.{own}" for tf, own in NORM_VARIABLES.items()}
            norms += 1
    return mapping


def _suffix(index: int) -> str:
    return f"_{index}" if index else ""


def is_left_out(name: str) -> bool:
    """Whether a checkpoint's variable belongs to a head, an optimiser or a counter."""
    return name.startswith(HEADS) or name.endswith(SLOTS) or name in COUNTERS


def from_variables(arch: str, variables: Mapping[str, np.ndarray]) -> SimCLRv2:
    """Builds `arch` with the weights of a TensorFlow checkpoint.

    Args:
        arch: such as `r50_1x_sk1`.
        variables: TensorFlow names (`base_model/conv2d_1/kernel`) to arrays; heads, optimiser
            slots and counters are left out by name.

    Returns:
        The network in evaluation mode; takes (n, 3, h, w) in [0, 1].

    Raises:
        ValueError: a variable is missing, unknown, misshapen or not finite.
    """
    with torch.device("meta"):  # without initial weights
        network = build_simclr_v2(arch)
    own = variable_map(network)
    kept = {name: value for name, value in variables.items() if not is_left_out(name)}
    missing, unknown = sorted(own.keys() - kept), sorted(kept.keys() - own)
    if missing or unknown:
        raise ValueError(
            f"variables must be exactly those of {arch}, got {len(missing)} missing "
            f"{missing[:3]} and {len(unknown)} unknown {unknown[:3]}"
        )
    counts = [name for name in network.state_dict() if name.endswith(COUNT)]
    tensors = {name: torch.zeros((), dtype=torch.int64) for name in counts}
    for name, value in kept.items():
        value = np.asarray(value, np.float32)
        value = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value
        tensors[own[name]] = torch.from_numpy(np.array(value, order="C"))
    load_weights(network.to_empty(device="cpu"), tensors, arch)
    return network.eval()


def read_tensorflow(path: Path) -> dict[str, np.ndarray]:
    """All variables of a TensorFlow checkpoint (its path without `.index`), heads left out.

    Raises:
        ValueError: TensorFlow is not installed, or the checkpoint cannot be read.
    """
    library = {"package": "TensorFlow", "extra": "convert"}
    tensorflow = check.installed("tensorflow", "convert", **library)
    prefix = str(path).removesuffix(".index")
    try:
        reader: Any = tensorflow.train.load_checkpoint(prefix)
        names = [name for name in reader.get_variable_to_shape_map() if not is_left_out(name)]
        return {name: reader.get_tensor(name) for name in names}
    except Exception as error:  # TensorFlow raises errors of its own
        raise ValueError(f"{path} must be a TensorFlow checkpoint, got: {error}") from error


def save_network(network: SimCLRv2, path: Path, arch: str) -> None:
    """Writes the converted weights as safetensors, whole or not at all."""
    with new_file(path) as partial:
        save_file(network.state_dict(), partial, {"arch": arch})
