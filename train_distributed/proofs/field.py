"""Field64, the integers modulo q = 2^64 - 2^32 + 1, on numpy arrays of uint64.

Arrays hold elements in [0, q); single elements are Python integers. A product of 128 bits is made
of four products of 32-bit halves and reduced with 2^64 = 2^32 - 1 and 2^96 = -1 (modulo q).
"""

import numpy as np
from numpy.typing import NDArray

Elements = NDArray[np.uint64]
MODULUS = 2**64 - 2**32 + 1  # q
ELEMENT_BYTES = 8
_Q = np.uint64(MODULUS)
_LOW = np.uint64(2**32 - 1)  # also 2^64 modulo q
_HALF = np.uint64(32)


class InvalidShare(ValueError):
    """Share or proof that an aggregator must not add; nothing was added."""


def check_length(length: int, **values: bytes) -> None:
    """Raises InvalidShare unless each value has this many bytes."""
    for name, value in values.items():
        if len(value) != length:
            raise InvalidShare(f"{name} must be {length} bytes, got {len(value)}")


def add(a: Elements, b: Elements | np.uint64) -> Elements:
    """a + b, elementwise."""
    total = a + b
    total += _LOW * (total < a)
    return _reduced(total)


def subtract(a: Elements, b: Elements | np.uint64) -> Elements:
    """a - b, elementwise."""
    return a - b - _LOW * (a < b)


def multiply(a: Elements, b: Elements | np.uint64) -> Elements:
    """a * b, elementwise."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, cross, other, high = a_low * b_low, a_low * b_high, a_high * b_low, a_high * b_high
    middle = (low >> _HALF) + (cross & _LOW) + (other & _LOW)
    high += (cross >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    low = (low & _LOW) | (middle << _HALF)
    top, bottom = high >> _HALF, high & _LOW  # times 2^96 = -1, times 2^64 = 2^32 - 1
    rest = low - top
    rest -= _LOW * (low < top)
    total = rest + ((bottom << _HALF) - bottom)
    total += _LOW * (total < rest)
    return _reduced(total)


def total(values: Elements) -> Elements:
    """Sums over the last axis, which has at most 2^31 entries."""
    low, high = (values & _LOW).sum(-1, np.uint64), (values >> _HALF).sum(-1, np.uint64)
    shifted = multiply(np.atleast_1d(high), np.uint64(2**32))
    return add(shifted, _reduced(np.atleast_1d(low))).reshape(values.shape[:-1])


def dot(a: Elements, b: Elements) -> Elements:
    """Sums of products over the last axis."""
    return total(multiply(a, b))


def powers(base: int, count: int) -> Elements:
    """(count,) base^0, base^1, ..."""
    found = np.ones(count, np.uint64)
    done = 1
    while done < count:
        factor = np.uint64(pow(base, done, MODULUS))
        found[done : 2 * done] = multiply(found[: min(done, count - done)], factor)
        done *= 2
    return found


def from_integers(values: NDArray[np.int64]) -> Elements:
    """Signed integers as elements: -1 is q - 1."""
    return values.astype(np.uint64) - _LOW * (values < 0)


def to_integers(values: Elements) -> NDArray[np.int64]:
    """Elements as the integers of the smallest magnitude: q - 1 is -1."""
    negative = values > np.uint64(MODULUS // 2)
    return (values + _LOW * negative).view(np.int64)


def encode(values: Elements) -> bytes:
    """Elements as little-endian words."""
    return values.astype("<u8", copy=False).tobytes()


def decode(octets: bytes) -> Elements:
    """Elements from little-endian words.

    Raises:
        InvalidShare: a word that is not below q.
    """
    values = np.frombuffer(octets, "<u8").astype(np.uint64)
    if (values >= _Q).any():
        raise InvalidShare(f"field elements must be < {MODULUS}, got {values.max()}")
    return values


def _reduced(values: Elements) -> Elements:
    return values - _Q * (values >= _Q)
