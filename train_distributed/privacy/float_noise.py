"""Gaussian noise in floating point, for simulations."""

import secrets

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
