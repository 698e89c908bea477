"""Field64 and its transforms against Python's integers, at the edges of every reduction."""

import itertools

import numpy as np
import pytest

from train_distributed.proofs import field, transforms
from train_distributed.proofs.field import MODULUS, InvalidShare
from train_distributed.proofs.streams import COLUMNS, SEED_BYTES, Stream, Usage, sign_products

EDGES = [0, 1, 2, 2**31, 2**32 - 2, 2**32 - 1, 2**32, 2**32 + 1, 2**63, MODULUS // 2]
EDGES += [MODULUS - edge for edge in EDGES[1:]] + [2**64 - 2**33, 0xFFFFFFFE00000001]


def elements(values) -> field.Elements:
    return np.array(values, np.uint64)


def some(count: int, seed: int = 0) -> field.Elements:
    return np.random.default_rng(seed).integers(0, MODULUS, count, np.uint64)


@pytest.mark.parametrize(
    ("ours", "exact"),
    [
        (field.add, lambda a, b: a + b),
        (field.subtract, lambda a, b: a - b),
        (field.multiply, lambda a, b: a * b),
    ],
)
def test_arithmetic_is_that_of_integers_modulo_q(ours, exact):
    pairs = list(itertools.product(EDGES + some(50).tolist(), repeat=2))
    a, b = elements([a for a, _ in pairs]), elements([b for _, b in pairs])
    assert ours(a, b).tolist() == [exact(*pair) % MODULUS for pair in pairs]


def test_sums_powers_and_dots_do_not_overflow():
    largest = elements([MODULUS - 1] * 100_000)
    assert int(field.total(largest)) == 100_000 * (MODULUS - 1) % MODULUS
    assert int(field.dot(largest, largest)) == 100_000 % MODULUS
    base = MODULUS - 3
    assert field.powers(base, 77).tolist() == [pow(base, i, MODULUS) for i in range(77)]


def test_signed_integers_come_back():
    signed = np.array([0, 1, -1, 2**62, -(2**62), MODULUS // 2, -(MODULUS // 2)], np.int64)
    assert field.to_integers(field.from_integers(signed)).tolist() == signed.tolist()
    assert field.from_integers(signed).tolist() == [x % MODULUS for x in signed.tolist()]


@pytest.mark.parametrize("word", [MODULUS, 2**64 - 1])
def test_words_outside_the_field_are_refused(word):
    with pytest.raises(InvalidShare, match=str(word)):
        field.decode(bytes(8) + word.to_bytes(8, "little"))


@pytest.mark.parametrize("count", [1, 2, 8, 64])
def test_transforms_are_values_at_the_powers_of_a_root(count):
    coefficients = np.stack([some(count, 1), some(count, 2)])
    root = transforms.root_of_unity(count)
    assert pow(root, count, MODULUS) == 1
    assert count == 1 or pow(root, count // 2, MODULUS) != 1
    values = transforms.evaluate(coefficients)
    for row, row_values in zip(coefficients.tolist(), values.tolist(), strict=True):
        for k, value in enumerate(row_values):
            place = pow(root, k, MODULUS)
            assert value == sum(c * pow(place, j, MODULUS) for j, c in enumerate(row)) % MODULUS
    assert (transforms.interpolate(values) == coefficients).all()
    point = 123_456_789
    expected = [transforms.at(row, point) for row in coefficients]
    assert field.dot(values, transforms.lagrange(point, count)).tolist() == expected


class Constant(Stream):
    """A stream of one byte."""

    def __init__(self, octet: int) -> None:
        self._octet = octet

    def read(self, length: int) -> bytes:
        return bytes([self._octet]) * length


@pytest.mark.parametrize(("octet", "sign"), [(0xFF, 1), (0x00, -1), (0x55, 0), (0xAA, 0)])
def test_the_longest_sums_of_signs_are_exact(octet, sign):
    vector = elements([MODULUS - 1] * (COLUMNS + 5))
    expected = sign * len(vector) * (MODULUS - 1) % MODULUS
    assert sign_products(vector, 3, Constant(octet)).tolist() == [expected] * 3


def test_signs_are_read_two_bits_at_a_time_and_each_test_begins_with_a_byte():
    vector, seed = some(41, 3), bytes(SEED_BYTES)
    octets, row = Stream(seed, Usage.SIGNS, b"").read(11 * 7), 11
    expected = []
    for test in range(7):
        bits = [octets[test * row + k // 4] >> 2 * (k % 4) & 3 for k in range(41)]
        signs = [{0: -1, 3: 1}.get(pair, 0) for pair in bits]
        expected.append(sum(s * x for s, x in zip(signs, vector.tolist(), strict=True)) % MODULUS)
    assert sign_products(vector, 7, Stream(seed, Usage.SIGNS, b"")).tolist() == expected
