"""ResNet-50 as first published (He et al. 2016), for weights with torchvision's names.

Later versions down-sample in the 3x3 convolution of a block; this one does in the first 1x1, and
weights trained for one are useless in the other though every shape fits.
"""

from functools import partial
from pathlib import Path
from typing import Any

from timm.models.resnet import Bottleneck, ResNet
from torch import Tensor, nn

from pretrain.encoders.base import Encoder
from pretrain.encoders.weights import fit_weights, read_weights
from pretrain.preprocess import Size

MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)  # of ImageNet; nothing is divided by
EPS = 1e-3  # of batch normalisation


class ResNet50V1(Encoder):
    """Takes pixels in [0, 1] and subtracts ImageNet's mean colour; 2,048 numbers per image."""

    embedding_dim = 2048

    def __init__(self) -> None:
        super().__init__()
        norm = partial(nn.BatchNorm2d, eps=EPS)
        block: Any = Bottleneck
        self.model = ResNet(block, (3, 4, 6, 3), num_classes=0, norm_layer=norm)
        for module in self.model.modules():
            if isinstance(module, Bottleneck):
                module.conv1.stride, module.conv2.stride = module.conv2.stride, module.conv1.stride
        self.normalise_by(MEAN, (1.0, 1.0, 1.0))

    def architecture(self) -> dict[str, Any]:
        """Name of the only one."""
        return {"kind": "resnet50-v1"}

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) in [0, 1] to (n, 2048)."""
        return self.model(self.normalised(images))


def build_resnet50_v1(_: str, weights: str | None, __: Size | None = None) -> ResNet50V1:
    """The network, with weights from a file with torchvision's names, or random ones.

    Raises:
        ValueError: weights that do not fit.
    """
    network = ResNet50V1()
    if weights not in (None, "random"):
        fit_weights(network.model, read_weights(Path(weights)), weights)
    return network
