"""Unbiased quantisation to J bits a number, and the bytes that then travel."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from train_distributed.privacy.float_noise import uniform


@dataclass(frozen=True)
class Quantiser:
    """Numbers in [-limit, limit] on a grid of 2^bits points, rounded up or down at random.

    A number inside the range keeps its expectation; one outside is clipped, which is
    post-processing of a noisy message and a matter of accuracy only.

    Raises:
        ValueError: limit <= 0, or bits not in [1, 32].

    Examples:
        >>> grid = Quantiser(limit=3.0, bits=2)  # -3, -1, 1, 3
        >>> grid.decode(grid.encode(torch.tensor([-9.0, 1.0]), None), 2).tolist()
        [-3.0, 1.0]
    """

    limit: float  # D, largest magnitude
    bits: int  # J, per number

    def __post_init__(self) -> None:
        if not 0 < self.limit < math.inf:
            raise ValueError(f"limit must be finite and > 0, got {self.limit}")
        if not 1 <= self.bits <= 32:
            raise ValueError(f"bits must be in [1, 32], got {self.bits}")

    @property
    def step(self) -> float:
        """Distance of two grid points."""
        return 2 * self.limit / (2**self.bits - 1)

    def encode(self, values: Tensor, generator: torch.Generator | None) -> bytes:
        """Clips, rounds at random and packs.

        Args:
            values: (n,) float64.
            generator: of the rounding; None draws from the operating system.

        Returns:
            n · bits bits, most significant first, zeros up to a whole byte.
        """
        place = (values.clamp(-self.limit, self.limit) + self.limit) / self.step
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
        if len(message) != expected:
            raise ValueError(f"message must have {expected} bytes, got {len(message)}")
        digits = np.unpackbits(np.frombuffer(message, np.uint8))[: count * self.bits]
        weights = 2.0 ** np.arange(self.bits - 1, -1, -1)
        codes = digits.reshape(count, self.bits) @ weights
        return torch.from_numpy(codes) * self.step - self.limit
