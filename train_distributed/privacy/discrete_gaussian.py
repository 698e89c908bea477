"""Exact discrete Gaussian noise N_Z(0, s²): P[z] ∝ exp(-z² / (2 s²)), z an integer.

OpenDP's sampler (Canonne, Kamath, Steinke 2020) is exact: it takes the standard deviation as the
rational number that the double is, uses integer arithmetic only, and draws its bits from the
operating system. It takes some 16 µs per draw and its time depends on what it draws, so a party's
time to answer must not be published.
"""

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from opendp.domains import atom_domain, vector_domain
from opendp.measurements import make_gaussian
from opendp.metrics import l2_distance
from opendp.mod import enable_features

LARGEST_STD = 2.0**53  # a draw beyond 2^63 then has probability < 2 exp(-2^19)


class NoiseSampler(Protocol):
    """Where a party's noise comes from; a test passes a recorded one."""

    def __call__(self, std: float, count: int) -> NDArray[np.int64]:
        """Returns `count` independent draws from N_Z(0, std²), std in steps."""
        ...


def discrete_gaussian(std: float, count: int) -> NDArray[np.int64]:
    """Draws from N_Z(0, std²) with bits of the operating system.

    Args:
        std: in steps, taken as the exact rational number that it is.
        count: number of independent draws.

    Returns:
        (count,) int64.

    Raises:
        ValueError: std not in (0, 2^53], or count < 0.
    """
    if not 0 < std <= LARGEST_STD:
        raise ValueError(f"std must be in (0, 2^53] steps, got {std}")
    if count < 0:
        raise ValueError(f"count must be >= 0, got {count}")
    enable_features("contrib")  # OpenDP's opt-in, once per process
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    gaussian = make_gaussian(*space, scale=float(std))
    return np.asarray(gaussian([0] * count), np.int64)


def add_noise(
    encoded: NDArray[np.uint64], stds: ArrayLike, sampler: NoiseSampler = discrete_gaussian
) -> NDArray[np.uint64]:
    """One party's submission: its integers plus its share of the noise, modulo 2^64.

    Args:
        encoded: (d,) uint64 from `FixedPoint.encode`.
        stds: standard deviation in steps; one number, or (d,) one per coordinate.
        sampler: source of the draws; called once per distinct standard deviation, in rising order.

    Returns:
        (d,) uint64, a new array.

    Raises:
        ValueError: shapes that do not fit, or a standard deviation out of range.
    """
    if encoded.dtype != np.uint64 or encoded.ndim != 1:
        raise ValueError(f"encoded must be (d,) uint64, got {encoded.shape} {encoded.dtype}")
    per_coordinate = np.broadcast_to(np.asarray(stds, np.float64), encoded.shape)
    noise = np.empty(len(encoded), np.int64)
    for std in np.unique(per_coordinate):
        mask = per_coordinate == std
        noise[mask] = sampler(float(std), int(mask.sum()))
    return encoded + noise.view(np.uint64)
