"""What an adversary sees says nothing but the sum, and audits catch each way to break that.

An audit runs a protocol from outside and reports what it finds wrong. A mutation replaces one part
by a plausible mistake; the audit that does not notice it would be worthless.

Views, constructively: all randomness is recorded; the inputs are changed; the streams that the
adversary cannot expand are replaced by exactly the difference; every byte it sees stays the same.
"""

import functools
import itertools
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from tests.train_distributed.secure_sum.simulate import make_secagg
from train_distributed.secure_sum import keys, prg, secagg, secagg_user, shamir
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.secagg import SERVER, pair_seed
from train_distributed.secure_sum.wire import Kind

W, D = 4, 5
Words = NDArray[np.uint64]
REAL_BYTES, REAL_STREAM = secrets.token_bytes, prg.stream


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


def audit_secagg_masks(patch: pytest.MonkeyPatch) -> set[str]:
    """Every vector is under its own seed's stream and one agreed stream per partner."""
    sent = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)
    parties, found = make_secagg(sent), set[str]()
    tap = Tap(patch)
    users = parties.users
    agreed = {
        frozenset(pair): _independent_pair_seed(parties, *pair)
        for pair in itertools.combinations(range(W), 2)
    }
    questions = {i: user.start() for i, user in enumerate(users)}
    for stage in range(2):
        for message in questions.values():
            parties.server.receive(message)
        asked = parties.server.advance()
        questions = {}
        for i, question in asked.items():
            tap.expanded.clear()
            questions[i] = users[i].receive(question)
            if stage == 1:
                pairs = {agreed[frozenset((i, j))] for j in range(W) if j != i}
                own = [seed for seed in tap.expanded if seed not in pairs]
                if len(own) != 1 or len(own[0]) != 32:
                    found.add("not one self-mask, and agreed masks besides it")
                if not pairs <= set(tap.expanded):
                    found.add("a pair's seed is not the 32 bytes of HKDF over X25519")
    return found


def audit_secagg_seeds(patch: pytest.MonkeyPatch) -> set[str]:
    """Every seed of a self-mask is 32 bytes from the system, whole, one per user."""
    tap, found = Tap(patch), set[str]()
    parties = make_secagg(np.zeros((W, D), np.uint64))
    agreed = {_independent_pair_seed(parties, *p) for p in itertools.combinations(range(W), 2)}
    questions = parties.questions(Kind.INBOX)
    tap.expanded.clear()
    for i, question in questions.items():
        parties.users[i].receive(question)
    own = set(tap.expanded) - agreed
    if not own <= {seed for seed in tap.drawn if len(seed) == 32}:
        found.add("a seed is not 32 bytes from the operating system")
    if len(own) != W:
        found.add("a seed is used twice")
    return found


def test_the_protocol_passes_its_audits() -> None:
    for audit in (audit_secagg_masks, audit_secagg_seeds):
        with pytest.MonkeyPatch.context() as patch:
            assert audit(patch) == set()


def _independent_pair_seed(parties, i: int, j: int) -> bytes:
    secret = parties.users[i]._masking.exchange(parties.users[j]._masking.public_key())
    info = b"mask" + parties.setup.session.digest + i.to_bytes(4, "big") + j.to_bytes(4, "big")
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def _narrow() -> bytes:
    return secrets.token_bytes(4).ljust(32, b"\0")


@pytest.mark.parametrize(
    ("mutation", "finding"),
    [
        (functools.cache(prg.new_seed), "a seed is used twice"),
        (_narrow, "a seed is not 32 bytes from the operating system"),
        (lambda: b"seed" * 8, "a seed is not 32 bytes from the operating system"),
    ],
    ids=["reused", "32 bits", "constant"],
)
def test_a_bad_seed_is_caught(mutation, finding, monkeypatch) -> None:
    monkeypatch.setattr(secagg_user, "new_seed", mutation)
    assert finding in audit_secagg_seeds(monkeypatch)


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
    found = audit_secagg_masks(monkeypatch)
    assert found == {"not one self-mask, and agreed masks besides it"}


def test_a_shared_secret_folded_to_32_bits_is_caught(monkeypatch) -> None:
    def folded(secret: bytes, purpose: bytes) -> bytes:
        return prg.derive(secret, purpose)[:4].ljust(32, b"\0")

    monkeypatch.setattr(secagg, "derive", folded)
    found = audit_secagg_masks(monkeypatch)
    assert "a pair's seed is not the 32 bytes of HKDF over X25519" in found


def _words(seed: bytes) -> Words:
    return np.concatenate([words.copy() for _, words in REAL_STREAM(seed, D)])


@pytest.fixture
def fixed_keys() -> dict[int, PrivateKeys]:
    names = [*range(6), SERVER]
    return {n: PrivateKeys(prg.derive(b"%d" % n, b"s"), prg.derive(b"%d" % n, b"o")) for n in names}


def _secagg_run(keys: dict[int, PrivateKeys], inputs: Words, dropped: int):
    """Every byte that the server receives or sends, the total, and the setup and users."""
    parties = make_secagg(inputs, keys=keys, nonce=b"n" * 32, minimum=3)
    sent = [user.start() for user in parties.users]
    pairs = {
        (i, j): pair_seed(
            parties.setup.session.digest,
            parties.users[i]._masking,
            parties.users[j]._masking.public_key().public_bytes_raw(),
            i,
            j,
        )
        for i, j in itertools.combinations(range(len(inputs)), 2)
    }
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


def test_the_server_of_secagg_sees_the_same_for_inputs_of_equal_sum(fixed_keys):
    """6 users: 5 drops out after sharing keys, 4 colludes with the server, 0 to 3 are honest."""
    corrupt, dropped, honest = 4, 5, range(4)
    first = np.random.default_rng(2).integers(0, 2**64, (6, D), np.uint64)
    second = first.copy()
    second[:3] = np.random.default_rng(3).integers(0, 2**64, (3, D), np.uint64)
    second[3] += first[:3].sum(0) - second[:3].sum(0)

    def view(inputs: Words, recorded: Recorded):
        with pytest.MonkeyPatch.context() as patch:
            recorded.install(patch)
            return _secagg_run(fixed_keys, inputs, dropped)

    plain, total, pairs = view(first, Recorded())
    # Along the path 0 - 1 - 2 - 3 of honest survivors, pass the differences on.
    pads, carried = {}, np.zeros(D, np.uint64)
    for i, j in itertools.pairwise(honest):
        carried = carried + first[i] - second[i]
        pads[pairs[i, j]] = _words(pairs[i, j]) + carried
    assert all(corrupt not in pair and dropped not in pair for pair in itertools.pairwise(honest))
    replaced, same_total, _ = view(second, Recorded(pads))
    assert replaced == plain
    assert np.array_equal(same_total, total)
    assert np.array_equal(total, first[:5].sum(0))
    assert view(second, Recorded())[0] != plain
