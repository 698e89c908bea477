"""A whole vector of fixed-point numbers as a few large integers whose sum is the sum of vectors.

Every number q ∈ [−B, B] becomes the slot q + B, wide enough for the sum of all parties, and as
many slots as fit share one plaintext. Adding plaintexts adds slots; none carries into its
neighbour, because a slot of w parties stays below w (2B + 1) ≤ 2^bits.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from train_distributed.privacy.fixed_point import FixedPoint

SPARE_BITS = 2  # plaintexts stay below n/4: above n/3 the library means negative numbers


@dataclass(frozen=True)
class Packing:
    """Slots of a plaintext of `key_bits` bits.

    Raises:
        ValueError: the key cannot hold a single slot.
    """

    numbers: FixedPoint  # the map between reals and integers, and the number of parties w
    key_bits: int  # of the modulus n

    def __post_init__(self) -> None:
        if self.key_bits - SPARE_BITS < self.slot_bits:
            raise ValueError(
                f"key_bits must be >= {self.slot_bits + SPARE_BITS}, the message space of "
                f"{self.numbers.parties} parties at bound {self.numbers.bound:g} and step "
                f"{self.numbers.step:g}, got {self.key_bits}"
            )

    @property
    def largest(self) -> int:
        """B, the largest integer that encodes a number of one party."""
        return math.ceil(self.numbers.bound / self.numbers.step)

    @property
    def slot_bits(self) -> int:
        """Bits that hold the sum of w slots."""
        return (self.numbers.parties * 2 * self.largest).bit_length()

    @property
    def slots(self) -> int:
        """Numbers in one plaintext."""
        return (self.key_bits - SPARE_BITS) // self.slot_bits

    def plaintexts(self, numbers: int) -> int:
        """How many plaintexts a vector of that many numbers takes."""
        return -(-numbers // self.slots)

    def pack(self, words: NDArray[np.uint64]) -> list[int]:
        """(m,) uint64 of `FixedPoint.encode` to `plaintexts(m)` integers.

        Raises:
            ValueError: words are not a uint64 vector, or one lies beyond B.
        """
        if words.dtype != np.uint64 or words.ndim != 1:
            raise ValueError(f"words must be (m,) uint64, got {words.shape} {words.dtype}")
        signed = words.view(np.int64)
        if len(signed) and int(np.abs(signed).max()) > self.largest:
            beyond = signed[np.abs(signed) > self.largest][0]
            raise ValueError(f"words must be within ±{self.largest}, got {beyond}")
        slots = [int(value) + self.largest for value in signed]
        return [
            sum(slot << (place * self.slot_bits) for place, slot in enumerate(group))
            for group in (slots[i : i + self.slots] for i in range(0, len(slots), self.slots))
        ]

    def unpack(self, plaintexts: list[int], numbers: int, added: int) -> NDArray[np.uint64]:
        """The sum of `added` packed vectors, (numbers,) uint64 modulo 2^64.

        Raises:
            ValueError: more vectors were added than the slots are made for, or not as many
                plaintexts as the vector takes.
        """
        if not 1 <= added <= self.numbers.parties:
            raise ValueError(f"added must be in [1, {self.numbers.parties}], got {added}")
        if len(plaintexts) != self.plaintexts(numbers):
            raise ValueError(
                f"plaintexts must be {self.plaintexts(numbers)} for {numbers} numbers, "
                f"got {len(plaintexts)}"
            )
        mask = (1 << self.slot_bits) - 1
        shift = added * self.largest
        values = [
            ((plaintext >> (place * self.slot_bits)) & mask) - shift
            for plaintext in plaintexts
            for place in range(self.slots)
        ]
        return np.array(values[:numbers], np.int64).view(np.uint64)
