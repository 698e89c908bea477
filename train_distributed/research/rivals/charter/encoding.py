"""Charter's messages: noisy numbers, quantised for the server or as integers for a secure sum.

The server of a secure sum sees only sums, so H clients sure to add their share s/√H protect as one
that adds s. The sum of H discrete Gaussians is within e^±ζ of one (Kairouz, Liu and Steinke 2021);
with steps of s/(1024 √H) ζ is below 10^-100. Rounding a message of n numbers moves the sum by at
most √n steps more between neighbours. This is the theorem of `privacy.mechanism` for a noise
multiplier that comes from Charter's own account, and not from one (ε, δ).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrain import check
from train_distributed.privacy.discrete_gaussian import add_noise, discrete_gaussian
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.privacy.float_noise import normal, uniform

_STEPS_PER_STD = 1024
_SMOOTHING = 4  # τ, steps: what a rounded continuous Gaussian needs more than a discrete one


class MessageEncoding(ABC):
    """Turns a client's numbers into a noisy message, and all clients' messages into their mean."""

    bits: int  # of a number's payload

    @abstractmethod
    def encode(
        self, values: Tensor, generator: torch.Generator | None, *, scale: float = 1.0
    ) -> bytes:
        """Adds noise and encodes.

        Args:
            values: (n,) float64.
            generator: of noise and rounding; None draws from the operating system.
            scale: factor that `mean` applies to the noisy values.
        """

    @abstractmethod
    def mean(self, messages: Sequence[bytes], count: int, *, scale: float = 1.0) -> Tensor:
        """(count,) float64 mean over clients of the noisy values, times the scale."""


@dataclass(frozen=True)
class Quantised(MessageEncoding):
    """Noisy numbers in [-limit, limit] on a grid of 2^bits points, rounded up or down at random.

    A number inside the range keeps its expectation; one outside is clipped, which is
    post-processing of a noisy message and a matter of accuracy only.

    Raises:
        ValueError: limit <= 0, or bits not in [1, 32].

    Examples:
        >>> grid = Quantised(limit=3.0, bits=2)  # -3, -1, 1, 3
        >>> grid.decode(grid.encode(torch.tensor([-9.0, 1.0]), None), 2).tolist()
        [-3.0, 1.0]
    """

    limit: float  # D, largest magnitude
    bits: int  # J, per number
    std: float = 0.0  # of the noise on every number

    def __post_init__(self) -> None:
        check.positive(limit=self.limit)
        check.within("[1, 32]", bits=self.bits)

    @property
    def step(self) -> float:
        """Distance of two grid points."""
        return 2 * self.limit / (2**self.bits - 1)

    def encode(
        self, values: Tensor, generator: torch.Generator | None, *, scale: float = 1.0
    ) -> bytes:
        """Adds noise, scales, clips, rounds at random and packs.

        Returns:
            n · bits bits, most significant first, zeros up to a whole byte.
        """
        noisy = (values + self.std * normal(tuple(values.shape), generator)) * scale
        place = (noisy.clamp(-self.limit, self.limit) + self.limit) / self.step
        rounded = (place + uniform(tuple(values.shape), generator)).floor()
        codes = rounded.clamp(0, 2**self.bits - 1).to(torch.int64).numpy()
        digits = codes[:, None] >> np.arange(self.bits - 1, -1, -1) & 1
        return np.packbits(digits.astype(np.uint8)).tobytes()

    def decode(self, message: bytes, count: int) -> Tensor:
        """(count,) float64 grid points.

        Raises:
            ValueError: a message of another length.
        """
        expected = -(-count * self.bits // 8)
        check.byte_length(expected, message=message)
        digits = np.unpackbits(np.frombuffer(message, np.uint8))[: count * self.bits]
        weights = 2.0 ** np.arange(self.bits - 1, -1, -1)
        codes = digits.reshape(count, self.bits) @ weights
        return torch.from_numpy(codes) * self.step - self.limit

    def mean(self, messages: Sequence[bytes], count: int, *, scale: float = 1.0) -> Tensor:
        """(count,) float64 mean of what the server decodes; clients have scaled their values."""
        total = torch.zeros(count, dtype=torch.float64)
        for message in messages:
            total += self.decode(message, count)
        return total / len(messages)


@dataclass(frozen=True)
class Summed(MessageEncoding):
    """Noisy integers modulo 2^64, of which the server sees the sum over clients.

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
    bits: int = field(default=64, init=False)  # of a word

    def __post_init__(self) -> None:
        _ = self.fixed_point

    @property
    def step(self) -> float:
        """Real size of one integer, a power of two."""
        fine = self.std / math.sqrt(self.honest) / _STEPS_PER_STD
        return 2.0 ** math.floor(math.log2(fine if fine > 0 else self.bound / 2**30))

    @property
    def local_std(self) -> float:
        """Standard deviation of one client's share, in real units; 0 without privacy."""
        if self.std == 0:
            return 0.0
        rounded = self.std * (1 + math.sqrt(self.count) * self.step / self.moved)
        return math.sqrt((rounded**2 + (_SMOOTHING * self.step) ** 2) / self.honest)

    @property
    def fixed_point(self) -> FixedPoint:
        """The integers, checked not to wrap around."""
        slack = 1 + 1e-9  # a clipped number may exceed the bound by its rounding
        return FixedPoint(self.step, self.bound * slack, self.parties, self.local_std)

    def encode(
        self, values: Tensor, generator: torch.Generator | None, *, scale: float = 1.0
    ) -> bytes:
        """One client's integers with its noise share; the sum is scaled, they are not.

        A generator gives rounded float noise, for simulations; None the discrete Gaussian, with the
        operating system's randomness.
        """
        integers = self.fixed_point.encode(values.numpy())
        if self.local_std == 0:
            return integers.tobytes()

        def rounded(std: float, count: int) -> NDArray[np.int64]:
            return (std * normal((count,), generator)).round().to(torch.int64).numpy()

        sampler = discrete_gaussian if generator is None else rounded
        return add_noise(integers, self.local_std / self.step, sampler).tobytes()

    def mean(self, messages: Sequence[bytes], count: int, *, scale: float = 1.0) -> Tensor:
        """(count,) float64, the scaled mean of the sum that a secure sum would reveal."""
        total = np.zeros(count, np.uint64)
        for message in messages:
            total += np.frombuffer(message, np.uint64)
        return torch.from_numpy(self.fixed_point.decode(total)) * scale / len(messages)
