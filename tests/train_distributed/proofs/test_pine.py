"""PINE: the draft's vectors, users that lie about their vector's length, changed messages."""

import hashlib
import math
import random
import secrets

import numpy as np
import pytest

from tests.changed_bytes import changed
from train_distributed.proofs import field, linear_proof
from train_distributed.proofs.circuits import Layout, Measurement, to_bits
from train_distributed.proofs.field import MODULUS, InvalidShare
from train_distributed.proofs.linear_proof import forgery_log2
from train_distributed.proofs.pine import NONCE_BYTES, RAND_BYTES, SHARES, Pine
from train_distributed.proofs.transforms import root_of_unity

KEY = bytes(range(32))
SMALL = Pine.for_bound(dimension=20, norm_bound=1000)

# SHA-256 of all that the published vectors of Pine64HmacSha256Aes128 (draft-chen-cfrg-vdaf-pine)
# hold of both reports: public share, input shares, prepare shares, message, out shares; and of the
# aggregate shares. d, bound, fractional bits, tests, successes, proofs.
PUBLISHED = {
    (20, 128, 7, 100, 100, 2): "f0a8526ce55695865ce5f0dff6eadb4dc650813245b84258ce2fece28ee8f64d",
    (20, 128, 7, 100, 100, 1): "b824ef1bc56c3d5ad9d00060037ec3530bc41dae7301c84e68d9f5a68f24bb5b",
    (250, 16, 4, 100, 100, 2): "8f84e4119402c91b4f15b6bfdbc6070db73d4a19f34a332a8ee34c9ede0ce793",
    (250, 16, 4, 100, 100, 1): "fccd0482710b03c8eae6b65990ba65cc474f97d72c38a7a94b7865f435679be6",
    (19, 1024, 10, 75, 75, 2): "0ba4723292860d306bee22b4846819bd0c0a476057a78ef05661a8920a89cc73",
    (19, 1024, 10, 75, 75, 1): "61bf851d7ccd4d2d5e243d23c82c4e11b845f36d5a0290cc06295e933121c2d2",
    (19, 1024, 10, 75, 50, 2): "4bb577bb1cfcfd2e66ccedf2abca808ddd43f532776e0e3fca91423a9c64460b",
    (19, 1024, 10, 75, 50, 1): "96bfae072233c903c48158fc3ce462afbf188f05f9067bceb4bbb11e9caeaffe",
}


def prepare(pine: Pine, nonce: bytes, public: bytes, shares: tuple[bytes, bytes]):
    """Both aggregators' steps: prepare shares, message and out shares."""
    states, sent = zip(
        *(pine.prepare_init(KEY, j, nonce, public, share) for j, share in enumerate(shares)),
        strict=True,
    )
    message = pine.prepare_message(*sent)
    return sent, message, [pine.prepare_next(state, message) for state in states]


@pytest.mark.parametrize("sizes", PUBLISHED, ids=str)
def test_published_vectors_to_the_byte(sizes):
    dimension, bound, fraction, tests, successes, proofs = sizes
    layout = Layout(dimension=dimension, norm_bound=bound, tests=tests, successes=successes)
    pine = Pine(
        layout=layout, chunk=150, chunk_norm_equality=4, proofs=proofs, proofs_norm_equality=1
    )
    digest, totals = hashlib.sha256(), [np.zeros(dimension, np.uint64)] * 2
    nonce = bytes(range(NONCE_BYTES))
    for entry in range(2):
        vector = np.zeros(dimension, np.int64)
        vector[entry] = 1 << fraction
        public, shares = pine.shard(vector, nonce, bytes(range(RAND_BYTES)))
        sent, message, outs = prepare(pine, nonce, public, shares)
        for octets in (public, *shares, *sent, message, *map(field.encode, outs)):
            digest.update(octets)
        totals = [field.add(total, out) for total, out in zip(totals, outs, strict=True)]
    for total in totals:
        digest.update(field.encode(total))
    assert digest.hexdigest() == PUBLISHED[sizes]
    assert pine.unshard(*totals).tolist() == [1 << fraction] * 2 + [0] * (dimension - 2)


@pytest.mark.parametrize(("dimension", "bound"), [(1, 1), (7, 2), (1000, 2**20), (3, 2**30)])
def test_vectors_of_the_bound_are_summed_exactly(dimension, bound):
    pine = Pine.for_bound(dimension=dimension, norm_bound=bound)
    generator = np.random.default_rng(0)
    longest = np.zeros(dimension, np.int64)
    longest[-1] = -bound
    spread = generator.normal(size=dimension)
    spread = np.trunc(spread / np.linalg.norm(spread) * bound).astype(np.int64)
    totals = [np.zeros(dimension, np.uint64)] * 2
    for vector in (longest, spread, np.zeros_like(longest)):
        nonce = secrets.token_bytes(NONCE_BYTES)
        public, shares = pine.shard(vector, nonce)
        assert len(shares[0]) == pine.leader_bytes
        *_, outs = prepare(pine, nonce, public, shares)
        totals = [field.add(total, out) for total, out in zip(totals, outs, strict=True)]
    assert (pine.unshard(*totals) == longest + spread).all()


def test_an_honest_user_sends_nothing_too_long():
    vector = np.zeros(20, np.int64)
    vector[:2] = 1000, 1
    with pytest.raises(ValueError, match="squared_norm must be <= 1000000, got 1000001"):
        SMALL.shard(vector, bytes(NONCE_BYTES))


def squared_norm(vector) -> int:
    return sum(entry * entry for entry in vector.tolist())


class Liar(Pine):
    """A user that claims to have the norm 0, and to have passed every test."""

    def _norm_bits(self, vector):
        return to_bits([0, self.layout.norm_bound**2], self.layout.norm_bits).ravel()

    def _test_bits(self, results):
        return np.ones(self.layout.tests * (self.layout.test_bits + 1), np.uint64)


class BeyondTheBound(Pine):
    """A user whose vector is too long, with its true norm."""

    def _norm_bits(self, vector):
        return to_bits([squared_norm(vector), 0], self.layout.norm_bits).ravel()


class WrapsAround(Pine):
    """A user that claims the norm that its vector has modulo q, and results within the range."""

    def _norm_bits(self, vector):
        squared = squared_norm(vector) % MODULUS
        rest = self.layout.norm_bound**2 - squared
        return to_bits([squared, rest], self.layout.norm_bits).ravel()

    def _test_bits(self, results):
        in_range = field.to_integers(results)
        in_range = np.clip(in_range, 1 - self.layout.test_bound, self.layout.test_bound)
        return super()._test_bits(field.from_integers(in_range))


class NoBits(Pine):
    """A user of the vector 0 with numbers in place of bits, whose weighted sums are right."""

    def _norm_bits(self, vector):
        bits = super()._norm_bits(vector)
        bits[:2] = 2, MODULUS - 1  # 2 - 2 = 0
        return bits


class TwoSuccessesInOne(Pine):
    """A user of the vector 0 with one failed test, for which another one counts twice."""

    successes = 0, 2

    def _test_bits(self, results):
        bits = super()._test_bits(results).reshape(self.layout.tests, -1)
        bits[:2, -1] = self.successes
        return bits.ravel()


class OneFailure(TwoSuccessesInOne):
    """A user of the vector 0 that admits that one test failed."""

    successes = 0, 1


def of_length(length: int) -> np.ndarray:
    vector = np.zeros(20, np.int64)
    vector[3] = length
    return vector


def short_modulo_q() -> np.ndarray:
    """A vector of four entries whose squares add to q and a little."""
    rest, vector = MODULUS + 1000**2, np.zeros(20, np.int64)
    for place in range(4):
        vector[place] = math.isqrt(rest)
        rest -= math.isqrt(rest) ** 2
    assert 0 <= squared_norm(vector) - MODULUS <= 1000**2
    return vector


@pytest.mark.parametrize(
    ("kind", "vector", "circuit"),
    [
        *((Liar, of_length(length), "NormEquality") for length in (1, 1001, 10_000, 2**40)),
        (BeyondTheBound, of_length(1001), "NormBound"),  # as many bits as the bound's square
        (WrapsAround, short_modulo_q(), "NormBound"),
        (NoBits, of_length(0), "NormBound"),
        (TwoSuccessesInOne, of_length(0), "NormBound"),
        (OneFailure, of_length(0), "NormBound"),
    ],
)
def test_users_that_lie_about_their_vector_are_refused(kind, vector, circuit) -> None:
    """They follow the protocol else."""
    public, shares = kind.for_bound(dimension=20, norm_bound=1000).shard(vector, bytes(NONCE_BYTES))
    with pytest.raises(InvalidShare, match=f"{circuit} must hold"):
        prepare(SMALL, bytes(NONCE_BYTES), public, shares)


@pytest.mark.parametrize(
    ("circuit", "weights"),  # of the sums of results in the output, for the joint randomness below
    [(SMALL.circuits[0], [-1]), (SMALL.circuits[-1], [1, 7**2])],
    ids=["norm", "bound"],
)
def test_who_knows_the_query_point_forges_and_another_point_finds_it(circuit, weights):
    """The verify key is a secret of the aggregators: a proof can be made for one point."""
    layout, generator = SMALL.layout, np.random.default_rng(0)
    invalid = generator.integers(0, MODULUS, layout.shared + layout.tests, np.uint64)
    measurement, joint, point = Measurement(layout, invalid), [3, 5, 7], 123_456_789
    seeds = generator.integers(0, MODULUS, circuit.arity, np.uint64)
    proof = linear_proof.prove(circuit, measurement, seeds, joint)
    answer = linear_proof.query(circuit, measurement, proof, point, joint, 1)
    assert answer[0] != 0
    places = linear_proof.degree_bound(circuit)
    root, of_calls = root_of_unity(places), np.repeat(weights, circuit.groups).tolist()
    moved = sum(  # the output, by x - t, which is 0 at t
        weight * (pow(root, call, MODULUS) - point) for call, weight in enumerate(of_calls, 1)
    )
    scale = -int(answer[0]) * pow(moved, -1, MODULUS)
    shift = np.array([-scale * point % MODULUS, scale % MODULUS], np.uint64)
    begin = circuit.arity
    proof[begin : begin + 2] = field.add(proof[begin : begin + 2], shift)
    for at, passes in ((point, True), (point + 1, False)):
        forged = linear_proof.query(circuit, measurement, proof, at, joint, 1)
        assert linear_proof.decide(circuit, forged) == passes


def test_a_report_prepared_under_another_nonce_is_refused():
    public, shares = SMALL.shard(np.zeros(20, np.int64), bytes(NONCE_BYTES))
    with pytest.raises(InvalidShare):
        prepare(SMALL, bytes([1] * NONCE_BYTES), public, shares)


def test_a_norm_that_is_proved_once_is_no_proof():
    """One proof of the norm's equality alone stays above 2^-60, however many the others are."""
    layout = Layout(dimension=9546, norm_bound=2**30)
    once = Pine(layout=layout, chunk=62, chunk_norm_equality=152, proofs=9, proofs_norm_equality=1)
    assert -58 < forgery_log2(layout, once.circuits) < -56
    assert forgery_log2(layout, Pine.for_bound(dimension=9546, norm_bound=2**30).circuits) < -99


@pytest.mark.parametrize(("key", "nonce"), [(b"", bytes(NONCE_BYTES)), (KEY, b"")])
def test_keys_and_nonces_of_another_length_are_refused(key, nonce):
    public, shares = SMALL.shard(np.zeros(20, np.int64), bytes(NONCE_BYTES))
    with pytest.raises(ValueError, match="bytes"):
        SMALL.prepare_init(key, 1, nonce, public, shares[1])


@pytest.mark.parametrize(
    ("name", "size"),
    [("norm_bound", 2**31), ("norm_bound", 0), ("dimension", 0), ("tests", 0), ("successes", 101)],
)
def test_sizes_for_which_nothing_is_proved_are_refused(name, size):
    with pytest.raises(ValueError, match=name):
        Layout(**{"dimension": 20, "norm_bound": 1000, name: size})


def take(sent: list[bytes], honest: list | None, nonce: bytes, message: bytes | None) -> None:
    """Both aggregators' steps with what was sent, and with honest states where there are some."""
    made = honest or [
        SMALL.prepare_init(KEY, j, nonce, sent[0], sent[1 + j]) for j in range(SHARES)
    ]
    prepare_shares = sent[3:5] if honest else [share for _, share in made]
    message = SMALL.prepare_message(*prepare_shares) if message is None else message
    for state, _ in made:
        SMALL.prepare_next(state, message)


LONG = [pytest.param(25_000, seed, marks=pytest.mark.slow) for seed in range(1, 5)]


@pytest.mark.parametrize(("count", "seed"), [(200, 0), *LONG])
def test_a_report_changed_anywhere_is_refused(count: int, seed: int):
    """One message of it, again and again: all are refused, none crashes."""
    draw = random.Random(seed)
    vector = np.arange(20, dtype=np.int64) * 10
    nonce = bytes(NONCE_BYTES)
    public, shares = SMALL.shard(vector, nonce)
    honest = [SMALL.prepare_init(KEY, j, nonce, public, share) for j, share in enumerate(shares)]
    good = [public, *shares, honest[0][1], honest[1][1]]
    good.append(SMALL.prepare_message(good[3], good[4]))
    for _ in range(count):
        which = draw.randrange(6)
        bad = list(good)
        bad[which] = changed(good[which], draw)
        with pytest.raises(InvalidShare):
            take(bad, honest if which >= 3 else None, nonce, bad[5] if which == 5 else None)
