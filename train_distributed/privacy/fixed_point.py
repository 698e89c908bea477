"""Real numbers as 64-bit integers whose sum modulo 2^64 is the true sum.

**No wrap-around.** Let every party submit `round(x / step)` with |x| ≤ bound, plus discrete
Gaussian noise of standard deviation s = noise_std / step. The rounded values of at most w parties
sum to at most w (bound/step + 1/2) in absolute value. A discrete Gaussian is sub-Gaussian with
its own parameter s² (Canonne, Kamath, Steinke 2020, Fact 16), so the noise of m ≤ w parties
exceeds 12 s w with probability ≤ 2 exp(-(12 s w)² / (2 m s²)) ≤ 2 exp(-72 w) per coordinate. Where

    w (bound/step + 1/2 + 12 s) < 2^63

the integer sum lies in [-2^63, 2^63) except with probability ≤ 2 d exp(-72 w) over d
coordinates, and then the sum modulo 2^64, read as a signed integer, is the integer sum.
Wrap-around would be wrong, never less private: reduction modulo 2^64 is post-processing, and may
come before the sum (of vectors, noise and masks) as well as after it.

**Exactness.** A power-of-two step makes `x / step` and `total * step` exact in float64 (within
its range), so rounding moves each coordinate by at most half a step and nothing else does.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pretrain import check

NOISE_MARGIN = 12  # standard deviations


@dataclass(frozen=True)
class FixedPoint:
    """The map between real vectors and their integers modulo 2^64.

    Raises:
        ValueError: a field out of range, or the sum of all parties could wrap around.
    """

    step: float  # real size of one integer
    bound: float  # largest |entry| that a party may encode, same unit as step
    parties: int  # w, the most vectors that are ever added
    noise_std: float = 0.0  # of one party's noise, added after encoding; same unit as step

    def __post_init__(self) -> None:
        check.positive(step=self.step)
        check.within("[0, inf)", bound=self.bound, noise_std=self.noise_std)
        check.at_least(1, parties=self.parties)
        largest = self.largest_sum
        if not largest < 2.0**63:
            raise ValueError(
                f"parties * (bound/step + 1/2 + {NOISE_MARGIN} noise_std/step) must be < "
                f"2^63, got {largest:.4g} for parties={self.parties}, "
                f"bound={self.bound}, step={self.step}, noise_std={self.noise_std}"
            )

    @property
    def largest_sum(self) -> float:
        """Below which the sum stays: w (bound/step + 1/2 + 12 noise_std/step), in steps."""
        margin = self.bound / self.step + 0.5 + NOISE_MARGIN * self.noise_std / self.step
        return self.parties * margin * (1 + 2.0**-50)

    def encode(self, x: ArrayLike) -> NDArray[np.uint64]:
        """round(x / step) modulo 2^64, uint64 of the same shape as x, any.

        Raises:
            ValueError: an entry beyond the bound or not finite; nothing is ever clipped.
        """
        values = np.asarray(x, np.float64)
        beyond = ~(np.abs(values) <= self.bound)  # also true for nan
        if np.any(beyond):
            raise ValueError(
                f"x must be finite and |x| <= bound={self.bound}, got {values[beyond].flat[0]}"
            )
        return np.rint(values / self.step).astype(np.int64).view(np.uint64)

    def decode(self, total: ArrayLike) -> NDArray[np.float64]:
        """Reads a sum modulo 2^64 as signed integers, in real units: float64 of the same shape.

        Raises:
            ValueError: total is not uint64.
        """
        words = np.asarray(total)
        if words.dtype != np.uint64:
            raise ValueError(f"total must be uint64, got {words.dtype}")
        return words.view(np.int64).astype(np.float64) * self.step


def is_power_of_two(step: float) -> bool:
    """True where dividing by `step` only moves the exponent."""
    return math.isfinite(step) and step > 0 and math.frexp(step)[0] == 0.5
