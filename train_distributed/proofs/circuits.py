"""Two circuits that are zero for a measurement whose vector is no longer than a bound.

A *measurement* is the vector (d,), then bits, then results of wraparound tests:

* v and u = B^2 - v, v the squared norm, in bits: so v is in [0, B^2] (PINE, Fig. 1);
* of each test, the dot product of the vector with random signs: v = result + b - 1 in bits, and a
  bit g that says that the result is in [-b + 1, b] (PINE, Fig. 2 and Remark 3.2). A vector whose
  squared norm is v only modulo q fails a test with probability at least 1/2 (Lemma 3.3).

Aggregators make the tests' results themselves, from their shares of the vector.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from pretrain import check
from train_distributed.proofs import field
from train_distributed.proofs.field import MODULUS, Elements

ALPHA = 8.7  # an honest test's result exceeds alpha B with probability < 2^-107
LONGEST = 2**28  # largest d


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes that users and aggregators agree on, and where each part of a measurement lies.

    Raises:
        ValueError: a size out of range, or a bound for which the tests prove nothing (Lemma 3.3).
    """

    dimension: int  # d
    norm_bound: int  # B, in grid steps
    tests: int = 100  # against wraparound
    successes: int = 100  # that a proof needs

    def __post_init__(self) -> None:
        check.within(f"[1, {LONGEST}]", dimension=self.dimension)
        check.within("[1, 2^31)", norm_bound=self.norm_bound)
        check.at_least(1, tests=self.tests)
        check.within(f"[1, {self.tests}]", successes=self.successes)
        bound = self.test_bound
        if 3 * self.norm_bound**2 + 2 >= MODULUS or not (
            2600 * bound <= MODULUS and bound**2 <= 4000 * MODULUS
        ):
            raise ValueError(f"norm_bound must be small enough for Field64, got {self.norm_bound}")

    @cached_property
    def norm_bits(self) -> int:
        """Bits of B^2."""
        return (self.norm_bound**2).bit_length()

    @cached_property
    def test_bound(self) -> int:
        """b, the bound of a wraparound test: the power of two above alpha B."""
        return 1 << math.ceil(ALPHA * self.norm_bound).bit_length()

    @cached_property
    def test_bits(self) -> int:
        """Bits of v of a wraparound test."""
        return (2 * self.test_bound - 1).bit_length()

    @cached_property
    def norm_end(self) -> int:
        """Place where the bits of the norm end and those of the tests begin."""
        return self.dimension + 2 * self.norm_bits

    @cached_property
    def shared(self) -> int:
        """Elements of a measurement that are shared: all but the tests' results."""
        return self.norm_end + self.tests * (self.test_bits + 1)


class Measurement:
    """A measurement, or a share of one: elements (shared + tests,), and what its bits say."""

    def __init__(self, layout: Layout, elements: Elements) -> None:
        self.vector = elements[: layout.dimension]
        self.bits = elements[layout.dimension : layout.shared]
        columns = elements[layout.norm_end : layout.shared].reshape(layout.tests, -1)
        norms = elements[layout.dimension : layout.norm_end].reshape(2, -1)
        self.v, self.u = from_bits(norms).tolist()  # of the squared norm
        self.claims = from_bits(columns[:, :-1])  # (tests,) v of each
        self.passed = columns[:, -1]  # (tests,) g of each
        self.results = elements[layout.shared :]  # (tests,)


class NormEquality:
    """The squared norm is the claimed v: one gadget sums squares of `chunk` entries."""

    joint_randomness = 0

    def __init__(self, layout: Layout, chunk: int) -> None:
        check.at_least(1, chunk=chunk)
        self.arity, self.groups = chunk, (-(-layout.dimension // chunk),)

    def inputs(self, measurement: Measurement, joint: list[int], shares: int) -> Elements:
        """The vector in chunks; see `Circuit.inputs`."""
        return _chunks(measurement.vector, self.arity)

    def output(
        self, measurement: Measurement, sums: list[int], joint: list[int], shares: int
    ) -> int:
        """Claimed minus computed squared norm; see `Circuit.output`."""
        return (measurement.v - sums[0]) % MODULUS

    def gadget(self, wires: Elements) -> Elements:
        """Sum of squares of all wires."""
        return field.total(field.multiply(wires, wires).T)


class NormBound:
    """Bits are bits, the norm is in range, the tests are right: a gadget sums `chunk` products."""

    joint_randomness = 3  # for the bits, for the tests, for their sum

    def __init__(self, layout: Layout, chunk: int) -> None:
        check.at_least(1, chunk=chunk)
        self._layout, self.arity = layout, 2 * chunk
        bits = layout.shared - layout.dimension
        self.groups = (-(-bits // chunk), -(-layout.tests // chunk))

    def inputs(self, measurement: Measurement, joint: list[int], shares: int) -> Elements:
        """Factors of r^i b (b - 1) of all bits, then of r^i g (result - claimed result)."""
        bits, one = measurement.bits, pow(shares, -1, MODULUS)
        weighted = field.multiply(bits, field.powers(joint[0], len(bits)))
        bit_pairs = np.stack([weighted, field.subtract(bits, np.uint64(one))], axis=1)
        offset = np.uint64((self._layout.test_bound - 1) * one % MODULUS)
        claimed = field.subtract(measurement.claims, offset)
        wrong = field.subtract(measurement.results, claimed)
        wrong = field.multiply(wrong, field.powers(joint[1], len(wrong)))
        test_pairs = np.stack([wrong, measurement.passed], axis=1)
        return np.concatenate(
            [_chunks(pairs.ravel(), self.arity) for pairs in (bit_pairs, test_pairs)]
        )

    def output(
        self, measurement: Measurement, sums: list[int], joint: list[int], shares: int
    ) -> int:
        """Random combination of bits, range of the norm, tests, and number of successes."""
        layout, one, r = self._layout, pow(shares, -1, MODULUS), joint[2]
        bits, tests = sums
        norm = measurement.v + measurement.u - layout.norm_bound**2 * one
        successes = int(field.total(measurement.passed)) - layout.successes * one
        return (bits + r * (norm + r * (tests + r * successes))) % MODULUS

    def gadget(self, wires: Elements) -> Elements:
        """Sum of products of neighbouring wires."""
        return field.total(field.multiply(wires[0::2], wires[1::2]).T)


def to_bits(values: list[int], count: int) -> Elements:
    """(n, count) bits of n integers below 2^count, lowest first."""
    words = np.array(values, np.uint64)[:, None]
    return (words >> np.arange(count, dtype=np.uint64)) & np.uint64(1)


def from_bits(bits: Elements) -> Elements:
    """(n,) the elements of which (n, count) are the bits, or shares of the bits."""
    return field.dot(bits, np.uint64(1) << np.arange(bits.shape[-1], dtype=np.uint64))


def _chunks(values: Elements, size: int) -> Elements:
    """Values in rows of `size`, zeros at the end."""
    return np.append(values, np.zeros(-len(values) % size, np.uint64)).reshape(-1, size)
