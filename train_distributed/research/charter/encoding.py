"""Charter's messages as integers for a secure sum, each with its share of the noise.

The server sees only sums, so H clients sure to add their share s/√H protect as one that adds s. The
sum of H discrete Gaussians is within e^±ζ of one (Kairouz, Liu and Steinke 2021); with steps of
s/(1024 √H) ζ is below 10^-100. Rounding a message of n numbers moves the sum by at most √n steps
more between neighbours. This is the theorem of `privacy.integer_gaussian` for a noise multiplier
that comes from Charter's own account, and not from one (ε, δ).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.privacy.discrete_gaussian import add_noise, discrete_gaussian
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.privacy.float_noise import normal

_STEPS_PER_STD = 1024
_SMOOTHING = 4  # τ, steps: what a rounded continuous Gaussian needs beside a discrete one


@dataclass(frozen=True)
class Encoder:
    """Real vectors to noisy integers modulo 2^64 and their sum back.

    The sum's noise has at least the wanted ratio to the sensitivity, rounding included.

    Raises:
        ValueError: a sum that could wrap around.
    """

    std: float  # of the sum's noise, for sensitivity `moved`
    moved: float  # L2 sensitivity before rounding
    count: int  # numbers in a message
    bound: float  # largest magnitude of one of them
    parties: int  # M
    honest: int  # H

    def __post_init__(self) -> None:
        _ = self.fixed_point

    @property
    def step(self) -> float:
        """Real size of one integer, a power of two."""
        fine = self.std / math.sqrt(self.honest) / _STEPS_PER_STD
        return 2.0 ** math.floor(math.log2(fine if fine > 0 else self.bound / 2**30))

    @property
    def local_std(self) -> float:
        """Of one client's share, in real units; 0 without privacy."""
        if self.std == 0:
            return 0.0
        rounded = self.std * (1 + math.sqrt(self.count) * self.step / self.moved)
        return math.sqrt((rounded**2 + (_SMOOTHING * self.step) ** 2) / self.honest)

    @property
    def fixed_point(self) -> FixedPoint:
        """The integers, checked not to wrap around."""
        slack = 1 + 1e-9  # a clipped number may exceed the bound by its rounding
        return FixedPoint(self.step, self.bound * slack, self.parties, self.local_std)

    def encode(self, values: Tensor, generator: torch.Generator | None) -> NDArray[np.uint64]:
        """One client's integers with its noise.

        Args:
            values: (count,) float64 within the bound.
            generator: rounded float noise, for simulations; None: the discrete Gaussian, with the
                operating system's randomness.
        """
        integers = self.fixed_point.encode(values.numpy())
        if self.local_std == 0:
            return integers

        def rounded(std: float, count: int) -> NDArray[np.int64]:
            return (std * normal((count,), generator)).round().to(torch.int64).numpy()

        sampler = discrete_gaussian if generator is None else rounded
        return add_noise(integers, self.local_std / self.step, sampler)

    def decode(self, messages: list[NDArray[np.uint64]]) -> Tensor:
        """(count,) float64, the sum of all clients' messages, as a secure sum would reveal it."""
        total = np.zeros(self.count, np.uint64)
        for message in messages:
            total += message
        return torch.from_numpy(self.fixed_point.decode(total))
