"""What one server sees is the same for any two input sets with the same sum; two see everything.

Constructively: all randomness is recorded; the inputs are changed; the streams that the server
cannot expand are replaced by exactly the difference, and the hash of a part that it lacks depends
on the part's 32 random bytes alone (a random oracle); every byte it sees stays the same.
"""

import functools
import hashlib
import secrets
from collections.abc import Callable

import numpy as np
import pytest

from tests.train_distributed.secure_sum.randomness import REAL_STREAM, Recorded, Tap, Words
from train_distributed.secure_sum import keys, prg, replicated
from train_distributed.secure_sum.keys import PrivateKeys, open_seal
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.replicated import Replicated
from train_distributed.secure_sum.shares import share_context
from train_distributed.secure_sum.tally import tally
from train_distributed.secure_sum.wire import payload_of

W, D = 4, 6


def _recorded(patch: pytest.MonkeyPatch, pads: dict[bytes, Words]) -> None:
    """The same seeds in every run; some streams replaced; hashes of the last part by its salt."""

    def oracle(self: Replicated, user: int, part: int, content: bytes) -> bytes:
        return hashlib.sha256(bytes([user, part]) + content[:32]).digest()

    Recorded((keys, replicated), pads).install(patch)
    patch.setattr(Replicated, "hash_of", oracle)


def _session(make: Callable, party_keys: dict[int, PrivateKeys], inputs: Words, servers: int):
    """All that each server is sent or sends, and the total; seeds of all users."""
    parties = make(W, D, servers, keys=party_keys, nonce=b"n" * 32)
    shares = {i: dict(user.submit(inputs[i])) for i, user in enumerate(parties.users)}
    parties.round(shares)
    commits = {server: machine.commit() for server, machine in parties.servers.items()}
    parties.exchange(commits)
    openings = {server: machine.open() for server, machine in parties.servers.items()}
    seen = {
        server: [*(m[server] for m in shares.values()), *commits.values(), *openings.values()]
        for server in parties.servers
    }
    total = tally(parties.setup, commits[FIRST_SERVER], openings).opened.total
    return seen, total, parties, shares


def _content(parties, shares: dict[int, dict[int, bytes]], user: int, server: int) -> bytes:
    head = 32 * len(parties.servers)
    sealed = payload_of(shares[user][server])[head:]
    context = share_context(parties.setup.session, user, server)
    return open_seal(parties.keys[server].opening, sealed, context)


@pytest.mark.parametrize(("servers", "curious"), [(s, c) for s in (3, 4) for c in range(s)])
def test_one_server_sees_the_same_for_inputs_of_equal_sum(
    servers: int, curious: int, make_replicated: Callable
) -> None:
    names = [*range(W), *range(FIRST_SERVER, FIRST_SERVER + servers)]
    fixed = {
        n: PrivateKeys(prg.derive(b"%d" % n, b"s"), prg.derive(b"%d" % n, b"o")) for n in names
    }
    draw = np.random.default_rng(1).integers(0, 2**64, (2, W, D), np.uint64)
    draw[1, -1] += draw[0].sum(0) - draw[1].sum(0)

    def view(inputs: Words, pads: dict[bytes, Words]):
        with pytest.MonkeyPatch.context() as patch:
            _recorded(patch, pads)
            return _session(make_replicated, fixed, inputs, servers)

    plain, total, parties, shares = view(draw[0], {})
    pads = {}
    if curious < servers - 1:  # it lacks the users' seeds number `curious`
        holder = FIRST_SERVER + (curious + 1) % servers
        at = 32 * parties.setup.parts_of(holder).index(curious)
        for i in range(W):
            seed = _content(parties, shares, i, holder)[at : at + 32]
            words = np.concatenate([w.copy() for _, w in REAL_STREAM(seed, D)])
            pads[seed] = words + draw[1, i] - draw[0, i]
    replaced, same, _, _ = view(draw[1], pads)
    assert np.array_equal(same, total)
    server = FIRST_SERVER + curious
    assert replaced[server] == plain[server]
    others = [s for s in parties.servers if s != server]
    if curious == servers - 1:
        assert all(replaced[other] != plain[other] for other in others)
    else:  # the replacement is what makes them equal
        assert view(draw[1], {})[0][server] != plain[server]


@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_two_servers_that_collude_see_every_vector(
    pair: tuple[int, int], make_replicated: Callable, vectors: Callable
) -> None:
    """What the documentation says of the threat model."""
    sent, parties = vectors(W, D), make_replicated(W, D)
    shares = {i: dict(user.submit(sent[i])) for i, user in enumerate(parties.users)}
    parts: dict[int, bytes] = {}
    for j in pair:
        content, at = _content(parties, shares, 0, FIRST_SERVER + j), 0
        for part in parties.setup.parts_of(FIRST_SERVER + j):
            parts[part] = content[at : (at := at + parties.setup.part_bytes(part))]
    vector = np.frombuffer(parts[2][32:], np.uint64).copy()
    prg.add_stream(vector, parts[0])
    prg.add_stream(vector, parts[1])
    assert np.array_equal(vector, sent[0])


def _guessed(make: Callable) -> bool:
    """Whether the last server can tell which of ten vectors a user sent, from its hashes."""
    parties = make(2, 1)
    last = FIRST_SERVER + 2
    shares = {0: dict(parties.users[0].submit(np.array([7], np.uint64)))}
    seeds = _content(parties, shares, 0, last)
    signed = payload_of(shares[0][last])[64:96]
    for guess in range(10):
        masked = np.array([guess], np.uint64)
        prg.subtract_stream(masked, seeds[:32])
        prg.subtract_stream(masked, seeds[32:])
        for salt in (b"", bytes(32)):
            if parties.setup.hash_of(0, 2, salt + masked.tobytes()) == signed:
                return True
    return False


def test_hashes_tell_nothing_about_a_vector_that_could_be_guessed(
    make_replicated: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not _guessed(make_replicated)
    salted = Replicated.hash_of
    monkeypatch.setattr(
        Replicated,
        "hash_of",
        lambda self, user, part, content: salted(self, user, part, content[-8:]),
    )
    assert _guessed(make_replicated)  # without the salt


def _seed_faults(make: Callable, patch: pytest.MonkeyPatch, servers: int) -> set[str]:
    """Every part but the last is 32 bytes from the system, whole, one per user and part."""
    parties, tap, found = make(W, D, servers), Tap(patch), set[str]()
    carried = b""
    for user in parties.users:
        carried += b"".join(message for _, message in user.submit(np.zeros(D, np.uint64)))
    if not set(tap.expanded) <= {seed for seed in tap.drawn if len(seed) == 32}:
        found.add("a seed is not 32 bytes from the operating system")
    if len(set(tap.expanded)) != (servers - 1) * W:
        found.add("a seed is used twice")
    if any(seed in carried for seed in tap.expanded):
        found.add("a seed travels in clear")
    return found


@pytest.mark.parametrize("servers", [3, 4])
@pytest.mark.parametrize(
    ("name", "mutation", "finding"),
    [
        ("none", None, None),
        ("new_seed", functools.cache(prg.new_seed), "a seed is used twice"),
        ("new_seed", lambda: secrets.token_bytes(4).ljust(32, b"\0"), "a seed is not 32 bytes"),
        ("seal", lambda receiver, part, context: bytes(48) + part, "a seed travels in clear"),
    ],
    ids=["as it is", "reused", "32 bits", "unsealed"],
)
def test_a_bad_seed_is_caught(
    servers: int,
    name: str,
    mutation: Callable | None,
    finding: str | None,
    make_replicated: Callable,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mutation is not None:
        monkeypatch.setattr(replicated, name, mutation)
    found = _seed_faults(make_replicated, monkeypatch, servers)
    assert any(finding in text for text in found) if finding else not found
