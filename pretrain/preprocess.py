"""From uint8 pixels to what an encoder takes."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Preprocess:
    """Centre crop, bicubic resize, pixels in [0, 1]; each step only where asked for."""

    image_size: int | None = None  # pixels of the square input; None: as stored
    crop: float = 1.0  # share of the shorter side kept; SimCLR evaluates with 0.875
    invert: bool = False  # 1 - x, as the paper does for EMNIST

    def __post_init__(self) -> None:
        if self.image_size is not None and self.image_size < 1:
            raise ValueError(f"image_size must be >= 1, got {self.image_size}")
        if not 0 < self.crop <= 1:
            raise ValueError(f"crop must be in (0, 1], got {self.crop}")

    def __call__(self, images: Tensor) -> Tensor:
        """Maps (n, 3, h, w) uint8 to (n, 3, size, size) float32 in [0, 1]."""
        x = images.to(torch.float32) / 255
        if self.invert:
            x = 1 - x
        height, width = x.shape[-2:]
        side = round(self.crop * min(height, width))
        if self.crop < 1 or (self.image_size is not None and height != width):
            top, left = (height - side) // 2, (width - side) // 2
            x = x[..., top : top + side, left : left + side]
        size = self.image_size
        if size is None or x.shape[-2:] == (size, size):
            return x
        shrink = size < x.shape[-1]
        x = functional.interpolate(x, size=(size, size), mode="bicubic", antialias=shrink)
        return x.clamp_(0, 1)
