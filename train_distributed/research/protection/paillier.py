"""Additively homomorphic encryption of whole vectors (Paillier 1999, through `phe`).

The clients share the private key; the server holds the public one, multiplies ciphertexts and
sends the product back. A ciphertext hides its plaintext under the decisional composite residuosity
assumption for n of at least 2,048 bits.

A whole vector of fixed-point numbers is a few large integers whose sum is the sum of vectors.
Every number q ∈ [−B, B] becomes the slot q + B, wide enough for the sum of all parties, and as
many slots as fit share one plaintext. Adding plaintexts adds slots; none carries into its
neighbour, because a slot of w parties stays below w (2B + 1) ≤ 2^bits.
"""

import math
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pretrain import check
from train_distributed.privacy.fixed_point import FixedPoint

SPARE_BITS = 2  # plaintexts stay below n/4: above n/3 the library means negative numbers
DEPLOYED_BITS = 2048  # the least that is sent over a wire; 112 bits of security (NIST SP 800-57)


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
        """Number of plaintexts that a vector of that many numbers takes."""
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
        check.within(f"[1, {self.numbers.parties}]", added=added)
        check.equal(self.plaintexts(numbers), plaintexts=len(plaintexts))
        mask = (1 << self.slot_bits) - 1
        shift = added * self.largest
        values = [
            ((plaintext >> (place * self.slot_bits)) & mask) - shift
            for plaintext in plaintexts
            for place in range(self.slots)
        ]
        return np.array(values[:numbers], np.int64).view(np.uint64)


@dataclass(frozen=True)
class KeyPair:
    """Keys that every client holds; the server has `public` alone, and needs nothing else to add.

    A message is a sequence of ciphertexts, integers modulo n².
    """

    public: Any  # phe's
    private: Any  # phe's
    packing: Packing  # of whole vectors

    @classmethod
    def generate(cls, numbers: FixedPoint, key_bits: int = DEPLOYED_BITS) -> "KeyPair":
        """A new pair from the operating system's randomness.

        Raises:
            ValueError: `phe` is not installed, an odd number of bytes, or a key too short for the
                message space.
        """
        if key_bits < 16 or key_bits % 16:
            raise ValueError(f"key_bits must be a positive multiple of 16, got {key_bits}")
        packing = Packing(numbers, key_bits)
        public, private = _phe().generate_paillier_keypair(n_length=key_bits)
        return cls(public, private, packing)

    def write(self, ciphertexts: Iterable[int]) -> bytes:
        """The message of these ciphertexts."""
        size = 2 * (self.packing.key_bits // 8)
        return b"".join(each.to_bytes(size, "big") for each in ciphertexts)

    def read(self, message: bytes) -> list[int]:
        """The ciphertexts of a message."""
        size = 2 * (self.packing.key_bits // 8)
        return [int.from_bytes(message[i : i + size], "big") for i in range(0, len(message), size)]

    def add(self, messages: list[bytes]) -> bytes:
        """The server's part: the encrypted sum of all clients' vectors."""
        square = self.public.nsquare
        columns = zip(*map(self.read, messages), strict=True)
        return self.write(reduce(lambda a, b: a * b % square, column) for column in columns)

    def encrypt(self, words: NDArray[np.uint64]) -> bytes:
        """The message of one client: a ciphertext for every packed plaintext.

        It takes a quarter of the time that the public key alone would: clients know the factors.

        Args:
            words: (m,) uint64 of `FixedPoint.encode`.
        """
        n, square = self.public.n, self.public.nsquare
        plaintexts = self.packing.pack(words)
        return self.write((1 + n * plain) * self.mask() % square for plain in plaintexts)

    def mask(self) -> int:
        """r^n mod n², uniform over the n-th powers.

        Modulo p² these are the p-th powers of the numbers below p, each from one number, as q and
        p - 1 are coprime; likewise modulo q².
        """
        from phe.util import powmod  # with GMP where that is installed

        (p, q), square = (self.private.p, self.private.q), self.public.nsquare
        first, second = (powmod(1 + secrets.randbelow(f - 1), f, f * f) for f in (p, q))
        return (second + self._lift * (first - second)) % square

    @cached_property
    def _lift(self) -> int:
        """1 modulo p², 0 modulo q²."""
        p, q = self.private.p, self.private.q
        return q * q * pow(q * q, -1, p * p)

    def decrypt(self, message: bytes, numbers: int, added: int) -> NDArray[np.uint64]:
        """The sum of `added` vectors of `numbers` numbers, uint64 modulo 2^64.

        Raises:
            ValueError: a message that is not such a sum.
        """
        plain = [self.private.raw_decrypt(each) for each in self.read(message)]
        return self.packing.unpack(plain, numbers, added)


def arithmetic() -> str:
    """Integers that `phe` computes with: a power modulo n² takes 8 times as long without GMP."""
    _phe()
    from phe.util import HAVE_GMP

    return "gmpy2" if HAVE_GMP else "pure Python"


def _phe() -> Any:
    return check.installed("phe.paillier", "paillier", package="phe", extra="protection")
