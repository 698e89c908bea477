"""ResNet-50 as first published (He et al. 2016), for weights with torchvision's names.

Later versions down-sample in the 3x3 convolution of a block; this one does in the first 1x1, and
weights trained for one are useless in the other though every shape fits.
"""

from pretrain import torchvision_ops as torchvision_ops  # first: timm imports torchvision

# isort: split
from functools import partial
from typing import Any

import torch
from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from pretrain.encoders.base import Encoder

MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # of ImageNet; nothing is divided by
EPS = 1e-3  # of batch normalisation


class ResNet50V1(Encoder):
    """Takes pixels in [0, 1] and subtracts ImageNet's mean colour; 2,048 numbers per image."""

    mean: Tensor
    embedding_dim = 2048

    def __init__(self) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm2d, eps=EPS)
        block: Any = Bottleneck
        self.model = ResNet(block, (3, 4, 6, 3), num_classes=0, norm_layer=norm)
        for module in self.model.modules():
            if isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)

    def architecture(self) -> dict[str, Any]:
        """There is one."""
        return {"kind": "resnet50-v1"}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, 2048)."""
        return self.model(images - self.mean)
