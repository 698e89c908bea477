"""Public encoders: image readers, SimCLR pretraining, conversion, probes."""

from pretrain import torchvision_ops as torchvision_ops  # first: timm imports torchvision
from pretrain.encoder import build_encoder

__all__ = ["build_encoder"]
