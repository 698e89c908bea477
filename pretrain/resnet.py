"""Small residual networks for images of 28 to 64 pixels."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.encoders.base import Encoder
from pretrain.recipes import ResNetConfig
from pretrain.small_maps import convolve


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
        return self.config.to_json()

    @classmethod
    def rebuild(cls, architecture: dict[str, Any]) -> "SmallResNet":
        """The network that `architecture` described, untrained."""
        return cls(ResNetConfig.from_json(architecture))

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
