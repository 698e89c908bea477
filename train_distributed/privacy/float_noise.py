"""Noise in floating point: for simulations, and for what has no discrete mechanism.

Drawn from an explicit generator, or from the operating system where there is none: then no seed
exists that would let anyone subtract the noise.
"""

import os
import secrets

import numpy as np
import torch
from torch import Tensor


def system_generator() -> torch.Generator:
    """A generator seeded by the operating system; its seed is kept nowhere."""
    generator = torch.Generator()
    generator.manual_seed(secrets.randbits(63))
    return generator


def gaussian(size: int, std: float, generator: torch.Generator) -> Tensor:
    """(size,) float64 draws from N(0, std²).

    Floating-point noise has gaps that leak (Mironov 2012; Haney et al. 2022) and this generator is
    not cryptographic: whoever releases a model uses discrete noise.
    """
    return std * torch.randn(size, generator=generator, dtype=torch.float64)


def uniform(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Float64 uniform on the open interval (0, 1), 53 bits each.

    Without a generator they come from the operating system, and no seed is left behind.
    """
    if generator is None:
        count = int(np.prod(shape, dtype=np.int64))
        words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
        drawn = torch.from_numpy(words.astype(np.float64).reshape(shape))
    else:
        drawn = torch.randint(2**53, shape, generator=generator).double()
    return ((drawn + 0.5) * 2.0**-53).clamp_max(1 - 2.0**-53)  # the last one would round to 1


def normal(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Float64 standard normal by the inverse distribution function; drawn as `uniform` does."""
    return torch.special.ndtri(uniform(shape, generator))


def exponential_norm(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Float64 vectors in R^d with density ∝ exp(-‖e‖): what pure differential privacy in L2 adds.

    The direction is uniform on the sphere and the length Gamma(d, 1), the sum of d exponentials
    (Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 1). Divide by ζ for density ∝ exp(-ζ ‖e‖).
    The shape is (..., d); drawn as `uniform` does.
    """
    direction = normal(shape, generator)
    length = -uniform(shape, generator).log().sum(-1, keepdim=True)
    return direction / direction.norm(dim=-1, keepdim=True) * length
