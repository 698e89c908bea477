"""Generated pictures on which engines and precisions are compared.

A choice made by looking at a private picture would change the rows of all others with it.
"""

import torch
from torch import Tensor


def trial_pictures(count: int, height: int, width: int) -> Tensor:
    """(count, 3, height, width) uint8 pictures, always the same.

    They are clouds: the spectrum falls as 1/frequency, like that of natural images, and channels
    are correlated.
    """
    draw = torch.Generator().manual_seed(7)
    rows = torch.fft.fftfreq(height)[:, None] * height
    columns = torch.fft.rfftfreq(width) * width
    amplitude = 1 / torch.hypot(rows, columns).clamp(min=1)
    noise = torch.randn(count, 4, height, width, generator=draw)
    clouds = torch.fft.irfft2(torch.fft.rfft2(noise) * amplitude, s=(height, width))
    clouds = clouds[:, :3] / 2 + clouds[:, 3:]
    spread = clouds.square().mean((1, 2, 3), keepdim=True).sqrt()
    return (128 + 55 * clouds / spread.clamp(min=1e-6)).clamp(0, 255).to(torch.uint8)
