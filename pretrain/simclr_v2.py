"""The residual networks of SimCLRv2 (Chen et al. 2020b), plain and with selective kernels.

Submodules are created in the order in which the original TensorFlow code creates its variables:
the conversion of its checkpoints pairs them by counting. Every variable is used exactly once, and
every shape is checked.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain import check
from pretrain.encoders.base import Encoder
from pretrain.encoders.weights import COUNT, fit_weights, load_weights, read_weights
from pretrain.preprocess import Size
from pretrain.resnet import initialise

BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
SK_RATIO, SK_MIN_DIM = 1 / 16, 32


def _conv(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """Padding k // 2 is TensorFlow's "SAME" at stride 1 and its fixed padding at stride 2."""
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class SelectiveKernel(nn.Module):
    """Two 3x3 streams mixed by a softmax over globally pooled features (Li et al. 2019)."""

    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        middle = max(int(filters * SK_RATIO), SK_MIN_DIM)
        self.conv = _conv(inputs, 2 * filters, 3, stride)
        self.norm = nn.BatchNorm2d(2 * filters)
        self.squeeze = _conv(filters, middle, 1)
        self.squeeze_norm = nn.BatchNorm2d(middle)
        self.mix = _conv(middle, 2 * filters, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, filters, h / stride, w / stride)."""
        streams = functional.relu(self.norm(self.conv(x))).unflatten(1, (2, -1))
        pooled = streams.sum(1).mean((2, 3), keepdim=True)
        pooled = functional.relu(self.squeeze_norm(self.squeeze(pooled)))
        mixing = self.mix(pooled).unflatten(1, (2, -1)).softmax(1)
        return (streams * mixing).sum(1)


class Bottleneck(nn.Module):
    """1x1, 3x3 (or selective kernel), 1x1, and a shortcut, projected in a group's first block."""

    def __init__(
        self, inputs: int, filters: int, stride: int, *, project: bool, selective: bool
    ) -> None:
        super().__init__()
        self.stride, self.project, self.selective = stride, project, selective
        if project:
            self.shortcut = _conv(inputs, 4 * filters, 1, 1 if selective else stride)
            self.shortcut_norm = nn.BatchNorm2d(4 * filters)
        self.conv1 = _conv(inputs, filters, 1)
        self.norm1 = nn.BatchNorm2d(filters)
        if selective:
            self.conv2 = SelectiveKernel(filters, filters, stride)
            self.norm2 = nn.Identity()  # inside the selective kernel
        else:
            self.conv2 = _conv(filters, filters, 3, stride)
            self.norm2 = nn.Sequential(nn.BatchNorm2d(filters), nn.ReLU())
        self.conv3 = _conv(filters, 4 * filters, 1)
        self.norm3 = nn.BatchNorm2d(4 * filters)

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, 4 filters, h / stride, w / stride)."""
        shortcut = x
        if self.project:
            pooled = self._pooled(x) if self.selective else x
            shortcut = self.shortcut_norm(self.shortcut(pooled))
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(self.norm3(self.conv3(y)) + shortcut)

    def _pooled(self, x: Tensor) -> Tensor:
        """ResNet-D's average pooling, as TensorFlow pads it.

        Stride 1 is "SAME": the border averages what is there, which repeating the last row and
        column gives. Stride 2 pads a zero at the end, which counts where the size is odd.
        """
        mode = "replicate" if self.stride == 1 else "constant"
        return functional.avg_pool2d(functional.pad(x, (0, 1, 0, 1), mode), 2, self.stride)


class SimCLRv2(Encoder):
    """(n, 3, h, w) in [0, 1] -> (n, embedding_dim), the average-pooled last map."""

    def __init__(self, depth: int, width: int, *, selective: bool) -> None:
        super().__init__()
        self.name = f"r{depth}_{width}x_sk{int(selective)}"
        base = 64 * width
        self.embedding_dim = 4 * 8 * base
        if selective:  # ResNet-D: three 3x3 convolutions
            self.stem = nn.Sequential(
                _conv(3, base // 2, 3, 2),
                nn.BatchNorm2d(base // 2),
                nn.ReLU(),
                _conv(base // 2, base // 2, 3),
                nn.BatchNorm2d(base // 2),
                nn.ReLU(),
                _conv(base // 2, base, 3),
                nn.BatchNorm2d(base),
                nn.ReLU(),
            )
        else:
            self.stem = nn.Sequential(_conv(3, base, 7, 2), nn.BatchNorm2d(base), nn.ReLU())
        groups, inputs = [], base
        for index, count in enumerate(BLOCKS[depth]):
            filters, blocks = base * 2**index, []
            for block in range(count):
                first = block == 0
                stride = 2 if first and index else 1
                blocks.append(
                    Bottleneck(inputs, filters, stride, project=first, selective=selective)
                )
                inputs = 4 * filters
            groups.append(nn.Sequential(*blocks))
        self.groups = nn.Sequential(*groups)

    def architecture(self) -> dict[str, Any]:
        """Name of the network."""
        return {"kind": "simclrv2", "name": self.name}

    def stages(self, images: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The named outputs of the original network, in order: stem, four groups, pooled."""
        x = _max_pool(self.stem(images))
        yield "initial_max_pool", x
        for index, group in enumerate(self.groups, start=1):
            x = group(x)
            yield f"block_group{index}", x
        yield "final_avg_pool", x.mean((2, 3))

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        *_, (_, pooled) = self.stages(images)
        return pooled


def _max_pool(x: Tensor) -> Tensor:
    """3x3, stride 2, "SAME": pads at the end only where a side is even. Inputs are >= 0."""
    height, width = x.shape[-2:]
    left, top = width % 2, height % 2
    return functional.max_pool2d(functional.pad(x, (left, 1, top, 1)), 3, 2)


def build_simclr_v2(name: str, weights: str | None = None, _: Size | None = None) -> SimCLRv2:
    """Builds a network of SimCLRv2.

    Args:
        name: such as `r50_1x_sk1`: depth, width multiplier, selective kernels or not.
        weights: file that `python -m pretrain convert` wrote; None or "random": untrained.

    Raises:
        ValueError: another form of name, an unknown depth, or weights that do not fit.
    """
    match = re.fullmatch(r"r(\d+)_([1-9])x_sk([01])", name)
    if match is None or int(match[1]) not in BLOCKS:
        depths = "|".join(map(str, BLOCKS))
        raise ValueError(f"SimCLRv2 name must be r<{depths}>_<width>x_sk<0|1>, got {name}")
    network = SimCLRv2(int(match[1]), int(match[2]), selective=match[3] == "1")
    if next(network.parameters()).device != torch.device("meta"):
        initialise(network)
    if weights not in (None, "random"):
        fit_weights(network, read_weights(Path(weights)), weights)
    return network


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
