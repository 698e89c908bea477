"""SimCLR's random views, batched: one resampling and one colour matrix per image."""

import math

import torch
from torch import Tensor
from torch.nn import functional

from pretrain.recipes import AugmentConfig

LUMA = (0.299, 0.587, 0.114)
TO_YIQ = (LUMA, (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


def random_view(images: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """One random view of each image.

    Args:
        images: (n, 3, h, w) uint8.
        config: the distribution of views.
        generator: source of all randomness, on the device of `images`.

    Returns:
        (n, 3, size, size) float32 in [0, 1].
    """
    x = random_crop(images.to(torch.float32) / 255, config, generator)
    x = jitter_colours(x, config, generator)
    if config.blur:
        x = random_blur(x, config.blur, generator)
    return x


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(n, generator=generator, device=generator.device) * (high - low) + low


def random_crop(x: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """A random rectangle, area in [min_area, 1], sides 3:4 to 4:3, resized and perhaps flipped."""
    n = len(x)
    area = _uniform(n, config.min_area, 1.0, generator)
    ratio = _uniform(n, math.log(3 / 4), math.log(4 / 3), generator).exp()
    width, height = (area * ratio).sqrt().clamp_max(1), (area / ratio).sqrt().clamp_max(1)
    left = (1 - width) * _uniform(n, -1.0, 1.0, generator)
    top = (1 - height) * _uniform(n, -1.0, 1.0, generator)
    mirror = _uniform(n, -1.0, 1.0, generator).sign() if config.flip else torch.ones_like(width)
    theta = torch.zeros(n, 2, 3, device=x.device)
    theta[:, 0, 0], theta[:, 0, 2] = width * mirror, left
    theta[:, 1, 1], theta[:, 1, 2] = height, top
    grid = functional.affine_grid(theta, [n, 3, config.size, config.size], align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="reflection", align_corners=False)


def jitter_colours(x: Tensor, config: AugmentConfig, generator: torch.Generator) -> Tensor:
    """Brightness, contrast, saturation and hue as one affine map of RGB per image.

    Ranges are SimCLR's 0.8, 0.8, 0.8, 0.2 times the strength, applied with probability 0.8;
    greyscale with its own. The order is fixed and values are clamped once, at the end.
    """
    n, s, device = len(x), config.strength, x.device
    apply = _uniform(n, 0.0, 1.0, generator) < 0.8
    reach = min(0.8 * s, 1.0)
    factors = [_uniform(n, 1 - reach, 1 + reach, generator) for _ in range(3)]
    brightness, contrast, saturation = [f.where(apply, torch.ones_like(f)) for f in factors]
    angle = _uniform(n, -0.2 * s, 0.2 * s, generator) * (2 * math.pi)
    angle = angle.where(apply, torch.zeros_like(angle))
    grey = _uniform(n, 0.0, 1.0, generator) < config.greyscale
    saturation = saturation.where(~grey, torch.zeros_like(saturation))
    to_yiq = torch.tensor(TO_YIQ, device=device)
    turn = torch.zeros(n, 3, 3, device=device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * angle.cos()
    turn[:, 1, 2] = -saturation * angle.sin()
    turn[:, 2, 1] = saturation * angle.sin()
    matrix = torch.linalg.inv(to_yiq) @ turn @ to_yiq
    matrix = matrix * (brightness * contrast).view(n, 1, 1)
    mean = (x.mean((2, 3)) * torch.tensor(LUMA, device=device)).sum(1)
    offset = ((1 - contrast) * brightness * mean).view(n, 1, 1)
    flat = torch.baddbmm(offset, matrix, x.flatten(2))
    return flat.clamp_(0, 1).view_as(x)


def random_blur(x: Tensor, probability: float, generator: torch.Generator) -> Tensor:
    """Gaussian blur of sigma in [0.1, 2], kernel a tenth of the image, with a probability."""
    n, _, _, size = x.shape
    radius = max(1, size // 20)
    sigma = _uniform(n, 0.1, 2.0, generator).view(n, 1)
    sharp = (_uniform(n, 0.0, 1.0, generator) >= probability).view(n, 1, 1, 1)
    taps = torch.arange(-radius, radius + 1, device=x.device)
    kernel = torch.softmax(-((taps / sigma) ** 2) / 2, dim=1).repeat_interleave(3, 0)
    planes = functional.pad(x, (radius,) * 4, mode="reflect").flatten(0, 1)[None]
    planes = functional.conv2d(planes, kernel[:, None, :, None], groups=3 * n)
    planes = functional.conv2d(planes, kernel[:, None, None, :], groups=3 * n)
    return torch.where(sharp, x, planes[0].view_as(x))
