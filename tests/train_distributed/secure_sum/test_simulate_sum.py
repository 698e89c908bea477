"""`secagg` gives the plain sum modulo 2^64, bit for bit; an adversary sees nothing else."""

import functools
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.train_distributed.secure_sum.simulate import Drive, make_secagg, simulate_sum, vectors
from train_distributed.secure_sum import keys, prg, secagg, secagg_server, secagg_user, shamir
from train_distributed.secure_sum.errors import OutOfOrder, TooFewUsers
from train_distributed.secure_sum.graph import whole_users
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.prg import CHUNK_WORDS
from train_distributed.secure_sum.secagg import SERVER
from train_distributed.secure_sum.wire import Kind

Words = NDArray[np.uint64]
LARGE = pytest.param(200, 100_000, marks=pytest.mark.slow)


@pytest.mark.parametrize(("w", "d"), [(2, 100_000), (3, 1), (7, 8193), (12, 61_450), LARGE])
def test_the_total_is_the_plain_sum(w: int, d: int) -> None:
    sent = vectors(w, d)
    result = simulate_sum(sent)
    assert np.array_equal(result.total, sent.sum(0))
    assert result.survivors == tuple(range(w))
    assert 8 * d < result.bytes_per_client <= 8 * d + 20_000 + 400 * w


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(2, 12), st.integers(1, 50), st.data())
def test_the_survivors_total_is_exact_whoever_drops_out(w, d, data) -> None:
    most = whole_users(w, 0.2, "fraction")
    stages = data.draw(st.dictionaries(st.integers(0, w - 1), st.integers(0, 3), max_size=most))
    drop = {stage: [u for u, s in stages.items() if s == stage] for stage in range(4)}
    sent = np.full((w, d), 2**64 - 1, np.uint64)
    sent[:, 0] = 2 ** np.arange(w, dtype=np.uint64)  # names every user in the sum
    result = simulate_sum(sent, drop)
    assert set(result.survivors) == set(range(w)) - {u for u, s in stages.items() if s < 3}
    assert np.array_equal(result.total, sent[list(result.survivors)].sum(0))


def test_secagg_with_lists_shorter_than_all_is_exact() -> None:
    """65 users with 31 on each list; some drop out at every stage."""
    sent = vectors(65, 7)
    drop = {0: [3], 1: [7], 2: [0, 64], 3: [20, 21]}
    result = simulate_sum(sent, drop=drop, corrupt_fraction=0, dropout_fraction=0.1)
    left = [u for u in range(65) if u not in (3, 7, 0, 64)]
    assert list(result.survivors) == left
    assert np.array_equal(result.total, sent[left].sum(0))


@pytest.mark.parametrize(
    ("minimum", "stage", "least", "says"),
    [*((2, stage, 7, r"got \d") for stage in range(4)), *((9, s, 9, ">= 9") for s in range(3))],
)
def test_one_below_the_threshold_or_the_minimum_releases_nothing(minimum, stage, least, says):
    """10 users: 9 neighbours each, 6 shares open a secret; so 7 must answer to the end."""
    sent = vectors(10, 4)
    left = simulate_sum(sent, drop={stage: range(least, 10)}, minimum=minimum).survivors
    assert len(left) == (10 if stage == 3 else least)
    with pytest.raises(TooFewUsers, match=says):
        simulate_sum(sent, drop={stage: range(least - 1, 10)}, minimum=minimum)


@pytest.mark.parametrize("fails", [False, True])
def test_a_sum_of_many_chunks_is_exact_or_a_failure_leaves_nothing_released(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of 15 users have shared keys only: their masks are taken off, too."""
    gone, rows = {0, 4, 11}, vectors(15, 2 * CHUNK_WORDS + 5)
    expected = np.delete(rows, sorted(gone), 0).sum(0, dtype=np.uint64)
    parties = make_secagg(rows, minimum=9)
    server: Any = parties.server
    finish, server.finish = server.finish, lambda: None

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        return None if kind is Kind.MASKED and user in gone else message

    Drive(parties, answer).run()
    done = []

    def add(total: Words, seed: bytes) -> None:
        done.append(1)
        if fails and len(done) == 7:
            raise MemoryError("at the seventh mask")
        prg.add_stream(total, seed)

    monkeypatch.setattr(secagg_server, "add_stream", add)
    if not fails:
        assert np.array_equal(finish().total, expected)
        return
    with pytest.raises(MemoryError, match="at the seventh mask"):
        finish()
    assert server._journal.detail(server._session.digest, "open") is None
    assert not np.array_equal(server._total, expected)
    with pytest.raises(OutOfOrder):
        finish()


W, D = 4, 5
REAL_BYTES, REAL_STREAM = secrets.token_bytes, prg.stream
UNKNOWN = "a seed is not 32 bytes from the operating system"


@dataclass
class Recorded:
    """The same seeds and coefficients in every run, and replacements for some streams."""

    pads: dict[bytes, Words] = field(default_factory=dict)
    expanded: list[bytes] = field(default_factory=list)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        count = itertools.count(1)

        def seed() -> bytes:
            return prg.derive(next(count).to_bytes(32, "big"), b"recorded")

        for module in (keys, secagg_user):
            patch.setattr(module, "new_seed", seed)
        patch.setattr(
            shamir.secrets, "randbelow", lambda n: int.from_bytes(seed() + seed(), "big") % n
        )
        patch.setattr(prg, "stream", self.stream)

    def stream(self, seed: bytes, count: int) -> Iterator[tuple[slice, Words]]:
        self.expanded.append(seed)
        if seed in self.pads:
            yield slice(0, count), self.pads[seed][:count]
        else:
            yield from REAL_STREAM(seed, count)


class Tap:
    """Records what the operating system gave and what reached the cipher."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.drawn: list[bytes] = []
        self.expanded: list[bytes] = []
        patch.setattr(prg.secrets, "token_bytes", self._draw)
        patch.setattr(prg, "stream", self._expand)

    def _draw(self, count: int) -> bytes:
        self.drawn.append(REAL_BYTES(count))
        return self.drawn[-1]

    def _expand(self, seed: bytes, count: int) -> Iterator[tuple[slice, Words]]:
        self.expanded.append(bytes(seed))
        yield from REAL_STREAM(seed, count)


def audit(patch: pytest.MonkeyPatch) -> set[str]:
    """Every vector is under one agreed stream per partner and that of a seed of its own.

    Every such seed is 32 bytes from the system, whole, one per user.
    """
    tap, found = Tap(patch), set[str]()
    parties = make_secagg(np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64))
    agreed = _independent_pair_seeds(parties)
    seeds = list[bytes]()
    for i, question in parties.questions(Kind.INBOX).items():
        tap.expanded.clear()
        parties.users[i].receive(question)
        pairs = {seed for pair, seed in agreed.items() if i in pair}
        own = [seed for seed in tap.expanded if seed not in pairs]
        if not pairs <= set(tap.expanded):
            found.add("a pair's seed is not the 32 bytes of HKDF over X25519")
        if len(own) != 1 or len(own[0]) != 32:
            found.add("not one self-mask, and agreed masks besides it")
        seeds += own
    if not set(seeds) <= {seed for seed in tap.drawn if len(seed) == 32}:
        found.add(UNKNOWN)
    if len(set(seeds)) < len(seeds):
        found.add("a seed is used twice")
    return found


def test_the_protocol_passes_its_audit(monkeypatch) -> None:
    assert audit(monkeypatch) == set()


def _independent_pair_seeds(parties) -> dict[tuple[int, int], bytes]:
    def seed(i: int, j: int) -> bytes:
        secret = parties.users[i]._masking.exchange(parties.users[j]._masking.public_key())
        info = b"mask" + parties.setup.session.digest + i.to_bytes(4, "big") + j.to_bytes(4, "big")
        return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)

    return {pair: seed(*pair) for pair in itertools.combinations(range(len(parties.users)), 2)}


@pytest.mark.parametrize(
    ("mutation", "finding"),
    [
        (functools.cache(prg.new_seed), "a seed is used twice"),
        (lambda: secrets.token_bytes(4).ljust(32, b"\0"), UNKNOWN),
        (lambda: b"seed" * 8, UNKNOWN),
    ],
    ids=["reused", "32 bits", "constant"],
)
def test_a_bad_seed_is_caught(mutation, finding, monkeypatch) -> None:
    monkeypatch.setattr(secagg_user, "new_seed", mutation)
    assert finding in audit(monkeypatch)


def test_a_self_mask_left_out_is_caught(monkeypatch) -> None:
    plain = secagg_user.SecAggUser._mask

    def mutated(self, payload: bytes) -> bytes:
        real = secagg_user.add_stream

        def add(total: Words, seed: bytes) -> None:
            if seed != self._seed:
                real(total, seed)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secagg_user, "add_stream", add)
            return plain(self, payload)

    monkeypatch.setattr(secagg_user.SecAggUser, "_mask", mutated)
    assert audit(monkeypatch) == {"not one self-mask, and agreed masks besides it"}


def test_a_shared_secret_folded_to_32_bits_is_caught(monkeypatch) -> None:
    def folded(secret: bytes, purpose: bytes) -> bytes:
        return prg.derive(secret, purpose)[:4].ljust(32, b"\0")

    monkeypatch.setattr(secagg, "derive", folded)
    assert "a pair's seed is not the 32 bytes of HKDF over X25519" in audit(monkeypatch)


def _secagg_run(inputs: Words, dropped: int):
    """Every byte that the server receives or sends, the total, and the pairs' seeds."""
    own = {n: [prg.derive(b"%d" % n, of) for of in (b"s", b"o")] for n in (*range(6), SERVER)}
    keys = {number: PrivateKeys(*seeds) for number, seeds in own.items()}
    parties = make_secagg(inputs, keys=keys, nonce=b"n" * 32, minimum=3)
    sent = [user.start() for user in parties.users]
    pairs = _independent_pair_seeds(parties)
    for message in sent:
        parties.server.receive(message)
    for stage in range(4):
        messages = parties.server.advance()
        for i, message in sorted(messages.items()):
            sent.append(message)
            if i == dropped and stage >= 1:
                continue
            sent.append(parties.users[i].receive(message))
            parties.server.receive(sent[-1])
    return sent, parties.server.finish().total, pairs


def test_the_server_of_secagg_sees_the_same_for_inputs_of_equal_sum():
    """6 users: 5 drops out after sharing keys, 4 colludes with the server, 0 to 3 are honest.

    Inputs change, and streams that the adversary cannot expand by the difference: no byte it sees.
    """
    corrupt, dropped, honest = 4, 5, range(4)
    first = np.random.default_rng(2).integers(0, 2**64, (6, D), np.uint64)
    second = first.copy()
    second[:3] = np.random.default_rng(3).integers(0, 2**64, (3, D), np.uint64)
    second[3] += first[:3].sum(0) - second[:3].sum(0)

    def view(inputs: Words, recorded: Recorded):
        with pytest.MonkeyPatch.context() as patch:
            recorded.install(patch)
            return _secagg_run(inputs, dropped)

    plain, total, pairs = view(first, Recorded())
    # Along the path 0 - 1 - 2 - 3 of honest survivors, pass the differences on.
    pads, carried = {}, np.zeros(D, np.uint64)
    for i, j in itertools.pairwise(honest):
        carried = carried + first[i] - second[i]
        mask = np.concatenate([words.copy() for _, words in REAL_STREAM(pairs[i, j], D)])
        pads[pairs[i, j]] = mask + carried
    assert all(corrupt not in pair and dropped not in pair for pair in itertools.pairwise(honest))
    replaced, same_total, _ = view(second, Recorded(pads))
    assert replaced == plain
    assert np.array_equal(same_total, total)
    assert np.array_equal(total, first[:5].sum(0))
    assert view(second, Recorded())[0] != plain
