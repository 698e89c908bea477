"""Small residual networks for images of 28 to 64 pixels.

Convolutions of maps of a few pixels are plain matrix products in training on a CPU. On the border
of a 3 x 3 map 4 of 9 weights meet padding on average; libraries multiply by it, and choose slow
kernels for few pixels. Here a pixel of the result is a sum of at most three products: up to three
neighbouring pixels of one row, contiguous in memory, times their weights. For 320 channels of
3 x 3, forward and backward take 0.4 of oneDNN's time in float32, 0.2 in bfloat16.
"""

from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.encoders.base import Encoder
from pretrain.recipes import ResNetConfig

MOST_PIXELS = 16  # of the result; beyond, oneDNN is faster

Part = tuple[int, int, int, slice, int, slice]


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """Applies `layer` to x, up to rounding; faster in training on a CPU.

    Args:
        x: (n, inputs, h, w).
        layer: 3 x 3, padding 1, neither bias, groups nor dilation; strides equal.

    Returns:
        (n, outputs, ceil(h / stride), ceil(w / stride)).
    """
    stride = layer.stride[0]
    pixels = -(-x.shape[2] // stride) * -(-x.shape[3] // stride)
    if layer.training and x.device.type == "cpu" and pixels <= MOST_PIXELS:
        return _Convolution.apply(x, layer.weight, stride)  # pyright: ignore[reportReturnType]
    return layer(x)


class _Convolution(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)  # under autocast only
    def forward(ctx: Any, x: Tensor, weight: Tensor, stride: int) -> Tensor:
        x, weight = (of.permute(0, 2, 3, 1).contiguous() for of in (x, weight))
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        n, h, w, _ = x.shape
        y = x.new_zeros(n, -(-h // stride), -(-w // stride), len(weight))
        for a, b, row, columns, i, j in _parts(h, w, stride):
            near = x[:, row, columns].flatten(1)
            y[:, a, b].addmm_(near, weight[:, i, j].flatten(1).T)
        return y.permute(0, 3, 1, 2)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad: Tensor
    ) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        grad = grad.permute(0, 2, 3, 1).contiguous()
        to_x, to_weight = torch.zeros_like(x), torch.zeros_like(weight)
        for a, b, row, columns, i, j in _parts(x.shape[1], x.shape[2], ctx.stride):
            here, near = grad[:, a, b], x[:, row, columns].flatten(1)
            to_x[:, row, columns].flatten(1).addmm_(here, weight[:, i, j].flatten(1))
            to_weight[:, i, j].flatten(1).addmm_(here.T, near)
        return to_x.permute(0, 3, 1, 2), to_weight.permute(0, 3, 1, 2), None


def _parts(h: int, w: int, stride: int) -> Iterator[Part]:
    """Per pixel (a, b) of the result: a row of x, columns there, and the weights that they meet."""
    for a in range(0, h, stride):
        for b in range(0, w, stride):
            left, right = max(b - 1, 0), min(b + 2, w)
            for row in range(max(a - 1, 0), min(a + 2, h)):
                meets = slice(left - b + 1, right - b + 1)
                yield a // stride, b // stride, row, slice(left, right), row - a + 1, meets


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.project = nn.Conv2d(inputs, outputs, 1, bias=False) if inputs != outputs else None

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, h, w) -> (n, outputs, h / stride, w / stride)."""
        shortcut = functional.avg_pool2d(x, 2, ceil_mode=True) if self.stride == 2 else x
        if self.project is not None:
            shortcut = self.project(shortcut)
        y = functional.relu(self.norm1(convolve(x, self.conv1)), inplace=True)
        return functional.relu(self.norm2(convolve(y, self.conv2)) + shortcut, inplace=True)


class SmallResNet(Encoder):
    """(n, 3, h, w) in [0, 1] -> (n, embedding_dim); small-image stem, no max-pooling."""

    def __init__(self, config: ResNetConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.embedding_dim = config.widths[-1] * config.pool**2
        width = config.widths[0]
        self.stem = nn.Conv2d(3, width, 3, config.stem_stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        stages = []
        for index, (outputs, count) in enumerate(zip(config.widths, config.blocks, strict=True)):
            for block in range(count):
                stride = 2 if index and not block else 1
                stages.append(BasicBlock(width, outputs, stride))
                width = outputs
        self.stages = nn.Sequential(*stages)
        initialise(self, generator)

    def architecture(self) -> dict[str, Any]:
        """Configuration of the network."""
        return {"kind": "small-resnet", **asdict(self.config)}

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "SmallResNet":
        """The network that `architecture` described, untrained.

        Raises:
            ValueError: another kind of network or unknown fields.
        """
        names = [each.name for each in fields(ResNetConfig)]
        known = {"kind", *names}
        if architecture.get("kind") != "small-resnet" or architecture.keys() != known:
            raise ValueError(
                f"architecture must be a small-resnet with fields {known}, got {architecture}"
            )
        given: dict[str, Any] = {name: architecture[name] for name in names}
        given |= {name: tuple(given[name]) for name in ("widths", "blocks")}
        return cls(ResNetConfig(**given))

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, embedding_dim)."""
        x = functional.relu(self.norm(self.stem(2 * images - 1)), inplace=True)
        x = self.stages(x)
        if self.config.pool == 1:
            return x.mean((2, 3))
        return torch.flatten(functional.adaptive_avg_pool2d(x, self.config.pool), 1)


def initialise(network: nn.Module, generator: torch.Generator | None = None) -> None:
    """He initialisation of all convolutions and linear layers from `generator`."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(
                module.weight, mode="fan_out", nonlinearity="relu", generator=generator
            )
        elif isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu", generator=generator)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
