"""The audits pass on the protocols and catch each way to break them.

An audit runs a protocol from outside and reports what it finds wrong. A mutation replaces one part
by a plausible mistake; the audit that does not notice it would be worthless.
"""

import functools
import itertools
import secrets
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tests.train_distributed.secure_sum.randomness import Tap, Words
from train_distributed.secure_sum import errors, keys, masks, prg, secagg_user, shares
from train_distributed.secure_sum.journal import DurableJournal, VolatileJournal
from train_distributed.secure_sum.opening import Opening
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.wire import Kind, write

W, D = 4, 5


def audit_shares_seeds(make_shares: Callable, patch: pytest.MonkeyPatch) -> set[str]:
    """Every seed of protocol A is 32 bytes from the system, whole, one per user and server."""
    parties, tap, found = make_shares(W, D), Tap(patch), set[str]()
    for user in parties.users:
        dict(user.submit(np.zeros(D, np.uint64)))
    whole = {seed for seed in tap.drawn if len(seed) == 32}
    if not set(tap.expanded) <= whole:
        found.add("a seed is not 32 bytes from the operating system")
    if len(set(tap.expanded)) != 2 * W:
        found.add("a seed is used twice")
    return found


def audit_secagg_masks(make_secagg: Callable, patch: pytest.MonkeyPatch) -> set[str]:
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


def _independent_pair_seed(parties, i: int, j: int) -> bytes:
    secret = parties.users[i]._masking.exchange(parties.users[j]._masking.public_key())
    info = b"mask" + parties.setup.session.digest + i.to_bytes(4, "big") + j.to_bytes(4, "big")
    return HKDF(algorithm=SHA256(), length=32, salt=None, info=info).derive(secret)


def audit_relay(make_shares: Callable, patch: pytest.MonkeyPatch) -> set[str]:
    """Whoever carries the messages finds no seed in them."""
    parties, tap, found = make_shares(W, D), Tap(patch), set[str]()
    carried = b"".join(
        message for user in parties.users for _, message in user.submit(np.zeros(D, np.uint64))
    )
    if any(seed in carried for seed in tap.expanded):
        found.add("a seed travels in clear")
    return found


def audit_openings(make_shares: Callable, folder: Path, journal: Callable) -> set[str]:
    """A server restarted after opening a set does not open that set less one user."""
    original = make_shares(W, D, servers=2)
    openings = []
    for users in (range(W), range(W - 1)):
        keys_ = original.keys[FIRST_SERVER]
        machine = Opening(original.session, FIRST_SERVER, keys_, journal(folder))
        bitmap = original.session.bitmap(users)
        signed = original.sign(Kind.COMMIT, original.last, EVERYONE, bitmap)
        try:
            machine.commit(bitmap)
            machine.receive(
                shares.read(original.session, signed, FIRST_SERVER, {Kind.COMMIT: len(bitmap)})
            )
            openings.append(machine.open(np.zeros(D, np.uint64)))
        except errors.AlreadyOpened:
            pass
    return {"two sets of one session were opened"} if len(openings) > 1 else set()


def audit_minimum(make_shares: Callable) -> set[str]:
    """A set below the session's minimum is not signed."""
    parties = make_shares(W, D, servers=2, minimum=3)
    machine = Opening(parties.session, FIRST_SERVER, parties.keys[FIRST_SERVER], VolatileJournal())
    try:
        machine.commit(parties.session.bitmap({0, 1}))
    except errors.TooFewUsers:
        return set()
    return {"a set below the minimum was signed"}


def test_the_protocols_pass_their_audits(
    make_shares: Callable, make_secagg: Callable, tmp_path: Path
) -> None:
    audits = (audit_shares_seeds, make_shares), (audit_secagg_masks, make_secagg)
    for audit, make in (*audits, (audit_relay, make_shares)):
        with pytest.MonkeyPatch.context() as patch:
            assert audit(make, patch) == set()
    assert audit_openings(make_shares, tmp_path, DurableJournal) == set()
    assert audit_minimum(make_shares) == set()


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
def test_a_bad_seed_is_caught(
    mutation: Callable[[], bytes], finding: str, make_shares: Callable, monkeypatch
) -> None:
    monkeypatch.setattr(shares, "new_seed", mutation)
    assert finding in audit_shares_seeds(make_shares, monkeypatch)


def test_a_self_mask_left_out_is_caught(make_secagg: Callable, monkeypatch) -> None:
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
    found = audit_secagg_masks(make_secagg, monkeypatch)
    assert found == {"not one self-mask, and agreed masks besides it"}


def test_a_shared_secret_folded_to_32_bits_is_caught(make_secagg: Callable, monkeypatch) -> None:
    def folded(secret: bytes, purpose: bytes) -> bytes:
        return prg.derive(secret, purpose)[:4].ljust(32, b"\0")

    monkeypatch.setattr(masks, "derive", folded)
    found = audit_secagg_masks(make_secagg, monkeypatch)
    assert "a pair's seed is not the 32 bytes of HKDF over X25519" in found


def test_a_share_sent_in_clear_is_caught(make_shares: Callable, monkeypatch) -> None:
    monkeypatch.setattr(shares, "seal", lambda receiver, part, context: bytes(48) + part)
    assert audit_relay(make_shares, monkeypatch) == {"a seed travels in clear"}
    assert keys.seal is not shares.seal


def test_a_journal_that_forgets_is_caught(make_shares: Callable, tmp_path: Path) -> None:
    found = audit_openings(make_shares, tmp_path, lambda folder: VolatileJournal())
    assert found == {"two sets of one session were opened"}


def test_an_unchecked_minimum_is_caught(make_shares: Callable, monkeypatch) -> None:
    def unchecked(self: Opening, bitmap: bytes) -> bytes:
        signing = self._keys.signing
        return write(self._session, Kind.COMMIT, self._server, EVERYONE, bitmap, signing)

    monkeypatch.setattr(Opening, "commit", unchecked)
    assert audit_minimum(make_shares) == {"a set below the minimum was signed"}
