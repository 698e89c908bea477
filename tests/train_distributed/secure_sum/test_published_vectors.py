"""Primitives against published vectors, secret sharing, and no generator but the system's."""

import ast
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

import train_distributed.secure_sum
from train_distributed.secure_sum.errors import BadSeal, InconsistentShares, TooFewUsers
from train_distributed.secure_sum.keys import (
    _SMALL_ORDER,
    PrivateKeys,
    agree,
    check_order,
    exchange_key,
)
from train_distributed.secure_sum.prg import CHUNK_WORDS, derive, stream
from train_distributed.secure_sum.shamir import PRIME, SHARE_BYTES, reconstruct, split, weights


def _octets(seed: bytes, count: int) -> bytes:
    return b"".join(words.tobytes() for _, words in stream(seed, count))


@pytest.mark.parametrize("words", [1, 3, 4, 5, 100, CHUNK_WORDS, CHUNK_WORDS + 1, 2 * CHUNK_WORDS])
def test_a_mask_of_any_length_is_that_of_the_plain_mode(words: int) -> None:
    seed = bytes(range(32))
    plain = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
    assert _octets(seed, words) == plain.update(bytes(8 * words))


@pytest.mark.parametrize(
    ("key", "blocks"),
    [
        # McGrew and Viega, The Galois/Counter Mode, test cases 13 and 14: H, tag, ciphertext
        (
            "00" * 32,
            "dc95c078a2408989ad48a21492842087530f8afbc74536b9a963b4f1c4cb738b"
            "cea7403d4d606b6e074ec5d3baf39d18",
        ),
        # NIST AESAVS, KeySbox and VarKey known answers for 256-bit keys
        (
            "c47b0294dbbbee0fec4757f22ffeee3587ca4730c3d33b691df38bab076bc558",
            "46f2fb342d6f0ab477476fc501242c5f",
        ),
        ("80" + "00" * 31, "e35a6dcb19b201a01ebcfa8aa22b5759"),
        ("ff" * 32, "4bf85f1b5d54adbc307b0a048389adcb"),
    ],
)
def test_the_first_blocks_of_a_mask_are_the_aes_256_ctr_keystream(key: str, blocks: str) -> None:
    assert _octets(bytes.fromhex(key), len(blocks) // 16).hex() == blocks


@pytest.mark.parametrize("size", [0, 4, 16, 31, 33])
def test_seeds_and_keys_of_another_width_are_refused(size: int) -> None:
    with pytest.raises(ValueError, match="seed must be 32 bytes"):
        next(stream(bytes(size), 1))
    with pytest.raises(BadSeal, match="must be 32 bytes"):
        agree(exchange_key(b"k" * 32), bytes(size))


def test_key_agreement_is_x25519() -> None:
    """RFC 7748, section 6.1."""
    bob = exchange_key(
        bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    )
    assert bob.public_key().public_bytes_raw().hex() == (
        "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    )
    alice = bytes.fromhex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert agree(bob, alice).hex() == (
        "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    )


@pytest.mark.parametrize("top", [0, 2**255])
def test_every_public_key_of_small_order_is_known(top: int) -> None:
    """The bit above the field's is ignored (RFC 7748, section 5)."""
    assert len(_SMALL_ORDER) == 7
    for point in _SMALL_ORDER:
        public = (point + top).to_bytes(32, "little")
        for refuse in (lambda p: agree(exchange_key(b"k" * 32), p), check_order):
            with pytest.raises(BadSeal, match="small order"):
                refuse(public)
    check_order(exchange_key(b"k" * 32).public_key().public_bytes_raw())


def test_derivation_is_hkdf_sha256() -> None:
    """RFC 5869, test case 3 (no salt, no info), its first 32 bytes."""
    assert derive(b"\x0b" * 22, b"").hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )


def test_signing_is_ed25519() -> None:
    """RFC 8032, section 7.1, test 1."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    assert PrivateKeys(seed, seed).public.verifying.hex() == (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )


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


def test_the_field_is_prime_and_holds_every_secret() -> None:
    assert 2**256 < PRIME < 2 ** (8 * SHARE_BYTES)
    assert all(pow(a, PRIME - 1, PRIME) == 1 for a in range(2, 60))  # Fermat, many bases


def test_shares_of_the_same_secret_differ_every_time() -> None:
    assert split(b"s" * 32, 2, [1, 2]) != split(b"s" * 32, 2, [1, 2])


def test_shares_of_no_secret_are_noticed() -> None:
    for share in ((PRIME - 1).to_bytes(SHARE_BYTES, "big"), b"\xff" * SHARE_BYTES):
        with pytest.raises(InconsistentShares, match="points"):
            reconstruct({1: share}, 1)


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


FORBIDDEN = {"random", "torch", "uuid", "time_ns"}
SOURCES = sorted(Path(train_distributed.secure_sum.__file__).parent.rglob("*.py"))


def weak_randomness(source: str) -> list[str]:
    """Names through which a module could reach a seedable generator."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            names = [node.func.id] if node.func.id == "__import__" else []
        else:
            continue
        found += [n for n in names if FORBIDDEN & set(n.split(".")) or n == "__import__"]
    return found


def test_no_module_uses_a_seedable_generator() -> None:
    assert {"prg", "reports", "secagg_user", "shamir", "keys"} <= {path.stem for path in SOURCES}
    assert [path for path in SOURCES if weak_randomness(path.read_text())] == []


def test_the_check_sees_weak_randomness() -> None:
    seeded = ["import random", "import torch", "from torch import randint", "__import__('random')"]
    seeded += ["from numpy import random", "from numpy.random import default_rng"]
    for source in (*seeded, "import numpy as np\nnp.random.default_rng()"):
        assert weak_randomness(source), source
