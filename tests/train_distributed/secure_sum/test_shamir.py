"""Any threshold shares give the secret; one fewer is consistent with every secret."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from train_distributed.secure_sum.errors import InconsistentShares, TooFewUsers
from train_distributed.secure_sum.shamir import PRIME, SHARE_BYTES, reconstruct, split, weights

SECRETS = st.one_of(st.binary(min_size=32, max_size=32), st.sampled_from([bytes(32), b"\xff" * 32]))


@settings(derandomize=True, deadline=None)
@given(SECRETS, st.integers(1, 12), st.integers(0, 5), st.randoms(use_true_random=False))
def test_any_threshold_shares_reconstruct(secret, threshold, extra, random) -> None:
    points = random.sample(range(1, 300), threshold + extra)
    shares = dict(zip(points, split(secret, threshold, points), strict=True))
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    chosen = random.sample(points, threshold)
    assert reconstruct({x: shares[x] for x in chosen}, threshold) == secret
    with pytest.raises(TooFewUsers, match=f">= {threshold}, got {threshold - 1}"):
        reconstruct({x: shares[x] for x in chosen[1:]}, threshold)


@settings(derandomize=True, deadline=None)
@given(SECRETS, SECRETS)
def test_one_share_fewer_fits_every_secret(secret: bytes, other: bytes) -> None:
    """For any other secret there is exactly one last share that makes the same view give it."""
    points = (1, 2, 5, 9)
    view = dict(zip(points, split(secret, 4, points), strict=True))
    view.pop(9)
    *known, last = weights(points)
    partial = sum(w * int.from_bytes(view[x], "big") for w, x in zip(known, view, strict=True))
    missing = (int.from_bytes(other, "big") - partial) * pow(last, -1, PRIME) % PRIME
    assert reconstruct(view | {9: missing.to_bytes(SHARE_BYTES, "big")}, 4) == other


def test_weights_are_lagrange_at_zero() -> None:
    points = (3, 1, 7, 20)
    for i, weight in enumerate(weights(points)):
        exact = Fraction(1)
        for j, x in enumerate(points):
            if j != i:
                exact *= Fraction(x, x - points[i])
        assert weight == exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def test_the_field_is_prime_and_holds_every_secret() -> None:
    assert 2**256 < PRIME < 2 ** (8 * SHARE_BYTES)
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in range(2, 60))  # Fermat, many bases


def test_shares_of_the_same_secret_differ_every_time() -> None:
    assert split(b"s" * 32, 2, [1, 2]) != split(b"s" * 32, 2, [1, 2])


def test_shares_of_no_secret_are_noticed() -> None:
    huge = (PRIME - 1).to_bytes(SHARE_BYTES, "big")
    with pytest.raises(InconsistentShares, match="points"):
        reconstruct({1: huge}, 1)
    with pytest.raises(InconsistentShares, match="points"):
        reconstruct({1: b"\xff" * SHARE_BYTES}, 1)


@pytest.mark.parametrize(
    ("secret", "threshold", "points", "message"),
    [
        (b"s" * 31, 1, [1], "secret must be 32 bytes"),
        (b"s" * 32, 0, [1], r"threshold must be in \[1, 1\]"),
        (b"s" * 32, 3, [1, 2], r"threshold must be in \[1, 2\]"),
        (b"s" * 32, 2, [1, 1], "points must be distinct"),
        (b"s" * 32, 1, [0], r"in \(0, 2\^16\), got \[0\]"),
    ],
)
def test_impossible_arguments_are_named(secret, threshold, points, message) -> None:
    with pytest.raises(ValueError, match=message):
        split(secret, threshold, points)
