"""Mutated messages at every decoder of the shares protocols: refused by name, memory flat.

Half of them are changed on the way; half come from an insider that signs what it has changed, so
that they get to what lies behind the signature.
"""

import gc
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest

from train_distributed.flower.blobs import join
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.endpoint import DONE, ComputationEndpoint, Request, UserEndpoint
from train_distributed.flower.orders import write_order
from train_distributed.flower.portions import checked, spoken
from train_distributed.flower.share_endpoint import read_refusal
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.journal import VolatileJournal
from train_distributed.secure_sum.keys import SEAL_BYTES, PrivateKeys
from train_distributed.secure_sum.opening import combine
from train_distributed.secure_sum.parties import EVERYONE, FIRST_SERVER
from train_distributed.secure_sum.replicated import Replicated, ReplicatedUser
from train_distributed.secure_sum.replicated_server import ReplicaServer, holding_of
from train_distributed.secure_sum.session import Session
from train_distributed.secure_sum.shares import SeedServer, SharesUser, VectorServer
from train_distributed.secure_sum.tally import Tally, tally
from train_distributed.secure_sum.wire import Kind, payload_of, receiver_of, write

W, D, S = 4, 40, 3
COUNTS = [300, pytest.param(10_000, marks=pytest.mark.slow)]
KEYS = {n: PrivateKeys.generate() for n in [*range(W), *range(FIRST_SERVER, FIRST_SERVER + S)]}
FIRST, SECOND, LAST = sorted(KEYS)[W:]
USERS = {i: KEYS[i].public.verifying for i in range(W)}
SERVERS = {s: KEYS[s].public for s in (FIRST, SECOND, LAST)}
NONCE, VECTOR = b"n" * 32, np.arange(D, dtype=np.uint64)


@dataclass
class Target:
    """A decoder, a message that it takes, and how it is signed."""

    session: Session
    message: bytes
    decode: Callable[[bytes], object]
    fresh: Callable[[], None] = lambda: None  # undoes what an accepted message has done


def _mutated(draw: np.random.Generator, content: bytes) -> bytes:
    at = int(draw.integers(len(content) + 1))
    size = int(draw.integers(1, 60))
    noise = draw.bytes(size)
    return [
        content[:at] + noise + content[at + size :],
        content[:at] + noise + content[at:],
        content[:at] + content[at + size :],
        content[:at],
        content[:at] + bytes(size) + content[at + size :],
        content + content[:at],
        noise,
        content[at:] + content[:at],
    ][int(draw.integers(8))]


def _mutants(target: Target, count: int) -> Iterator[bytes]:
    draw, message = np.random.default_rng(0), target.message
    (sender,) = struct.unpack(">I", message[38:42])
    for number in range(count):
        if number % 2:
            mutant = _mutated(draw, message)
        else:
            payload = _mutated(draw, payload_of(message))
            kind = Kind(message[5]) if number % 8 else list(Kind)[int(draw.integers(len(Kind)))]
            receiver, signing = receiver_of(message), KEYS[sender].signing
            mutant = write(target.session, kind, sender, receiver, payload, signing)
        if mutant != message:
            yield mutant


def _shares_session() -> Session:
    return Session(nonce=NONCE, dimension=D, minimum=2, users=USERS, servers=SERVERS)


def _setup() -> Replicated:
    fields = {"nonce": NONCE, "dimension": D, "minimum": 2, "users": USERS, "servers": SERVERS}
    return Replicated.agree_on(**fields)


def _shares_targets() -> dict[str, Target]:
    session = _shares_session()
    users = [SharesUser(session, i, KEYS[i], VolatileJournal()) for i in range(W)]
    shares = [dict(user.submit(VECTOR)) for user in users]
    seeds = {s: SeedServer(session, s, KEYS[s], VolatileJournal()) for s in (FIRST, SECOND)}
    adder = VectorServer(session, LAST, KEYS[LAST], VolatileJournal())
    for i in range(1, W):
        for server, machine in seeds.items():
            machine.receive(shares[i][server])
    held = write(session, Kind.HOLDING, FIRST, EVERYONE, b"\x0e", KEYS[FIRST].signing)
    also = write(session, Kind.HOLDING, SECOND, EVERYONE, b"\x0f", KEYS[SECOND].signing)
    adder.receive(also)
    waiting = VectorServer(session, LAST, KEYS[LAST], VolatileJournal())
    for message in (held, also):
        waiting.receive(message)
    commit = write(session, Kind.COMMIT, LAST, EVERYONE, b"\x0e", KEYS[LAST].signing)
    digest = b"d" * 32 + VECTOR.tobytes()
    opening = write(session, Kind.OPENING, FIRST, EVERYONE, digest, KEYS[FIRST].signing)
    return {
        "seed": Target(session, shares[0][FIRST], seeds[FIRST].receive),
        "vector": Target(session, shares[1][LAST], waiting.receive),
        "HOLDING": Target(session, held, adder.receive, adder._holdings.clear),
        "COMMIT": Target(
            session, commit, seeds[SECOND].receive, seeds[SECOND]._opening._seen.clear
        ),
        "combined COMMIT": Target(session, commit, lambda m: combine(session, m, [])),
        "combined OPENING": Target(session, opening, lambda m: combine(session, commit, [m])),
    }


def _exact(found: Tally) -> None:
    if not np.array_equal(found.opened.total, VECTOR * np.uint64(W)):
        raise AssertionError("a lie of one server was released")
    if set(found.faults) == {FIRST}:
        raise ProtocolError(found.faults[FIRST])


def _replicated_targets() -> dict[str, Target]:
    setup = _setup()
    session = setup.session
    users = [ReplicatedUser(setup, i, KEYS[i], VolatileJournal()) for i in range(W)]
    shares = [dict(user.submit(VECTOR)) for user in users]
    idle, last, front = (
        ReplicaServer(setup, s, KEYS[s], VolatileJournal()) for s in (LAST, LAST, FIRST)
    )
    done = {s: ReplicaServer(setup, s, KEYS[s], VolatileJournal()) for s in (FIRST, SECOND, LAST)}
    for server, machine in done.items():
        for messages in shares:
            machine.receive(messages[server])
    holdings = {server: machine.hold() for server, machine in done.items()}
    for server, machine in done.items():
        for other in done.keys() - {server}:
            machine.receive(holdings[other])
        machine.settle()
    commits = {server: machine.commit() for server, machine in done.items()}
    for server, machine in done.items():
        for other in done.keys() - {server}:
            machine.receive(commits[other])
    openings = {server: machine.open() for server, machine in done.items()}
    pair = [commits[FIRST], commits[SECOND]]
    word = users[0].witness(pair)
    length = {s: setup.share_bytes(s) for s in setup.servers}
    mine = [shares[0][SECOND], shares[0][LAST]]
    first = done[FIRST]
    return {
        "SHARE of seeds": Target(session, shares[0][LAST], last.receive, last._pending.clear),
        "SHARE of a vector": Target(session, shares[0][FIRST], front.receive, front._pending.clear),
        "HOLDING": Target(session, holdings[FIRST], idle.receive, idle._holdings.clear),
        "COMMIT": Target(session, commits[FIRST], idle.receive, idle._commits.clear),
        "WITNESS": Target(session, word, first.receive, first._witnesses.clear),
        "COMMIT at a witness": Target(
            session, commits[FIRST], lambda m: users[1].witness([m, commits[SECOND]])
        ),
        "tallied COMMIT": Target(session, commits[FIRST], lambda m: tally(setup, m, openings)),
        "tallied OPENING": Target(
            session,
            openings[FIRST],
            lambda m: _exact(tally(setup, commits[FIRST], openings | {FIRST: m})),
        ),
        "relayed SHARE": Target(
            session, shares[0][FIRST], lambda m: checked(session, 0, [m, *mine], length)
        ),
        "relayed COMMIT": Target(
            session,
            commits[FIRST],
            lambda m: setup.users_of(
                spoken(session, FIRST, m, Kind.COMMIT, setup.commit_bytes).payload
            ),
        ),
    }


TARGETS = {f"shares: {name}": t for name, t in _shares_targets().items()}
TARGETS |= {f"replicated: {name}": t for name, t in _replicated_targets().items()}
# Well signed, and for others to judge: another set, another hash of a part that is held elsewhere.
MAY_BE_VALID = ("HOLDING", "COMMIT", "relayed SHARE", "relayed COMMIT")
MAY_BE_VALID += ("SHARE of seeds", "SHARE of a vector")


def _taken(target: Target, mutant: bytes) -> bool:
    """Whether a decoder takes it; anything but a refusal in words is raised."""
    try:
        target.decode(mutant)
    except ProtocolError as error:
        if not str(error):
            raise
        return False
    target.fresh()
    return True


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", TARGETS)
def test_mutated_messages_are_refused_by_name_and_leave_nothing(name: str, count: int) -> None:
    target, taken, most = TARGETS[name], 0, 0
    mutants = _mutants(target, count)
    tracemalloc.start()
    try:
        for _ in range(count // 10):
            taken += _taken(target, next(mutants))
        gc.collect()  # empties the interpreter's free lists, too
        before, _ = tracemalloc.get_traced_memory()
        for mutant in mutants:
            tracemalloc.reset_peak()
            base, _ = tracemalloc.get_traced_memory()
            taken += _taken(target, mutant)
            _, peak = tracemalloc.get_traced_memory()
            most = max(most, peak - base)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 20_000
    assert most < 10 * len(target.message) + 20_000  # for one message
    assert taken == 0 or name.split(": ")[1] in MAY_BE_VALID
    assert taken < count / 4


@pytest.mark.parametrize("protocol", ["shares", "shares-replicated"])
@pytest.mark.parametrize("party", [0, FIRST + 1])
def test_an_endpoint_answers_any_request(protocol: str, party: int) -> None:
    public = [
        {"verifying": k.verifying.hex(), "sealing": k.sealing.hex()} for k in SERVERS.values()
    ]
    federation = Federation(
        protocol=protocol,  # pyright: ignore[reportArgumentType]
        dimension=D,
        minimum=2,
        users={i: key.hex() for i, key in USERS.items()},
        servers=tuple(public),
    )
    journal, keys = VolatileJournal(), KEYS[party]
    endpoint = (
        ComputationEndpoint(federation, party, keys, journal)
        if party >= FIRST
        else UserEndpoint(federation, party, keys, lambda: VECTOR, journal)
    )
    draw = np.random.default_rng(1)
    body = join([b"", *(target.message for target in list(TARGETS.values())[:4])])
    for number in range(2000):
        if number == 1000:
            order = NONCE + federation.session(NONCE).bitmap(USERS)
            start = write_order(federation, Request.START, order, KEYS[FIRST])
            assert endpoint.answer(start)[:1] == DONE
        request = list(Request)[int(draw.integers(len(Request)))]
        assert endpoint.answer(bytes([request]) + _mutated(draw, body))[:1] in (DONE, b"\1")


@pytest.mark.parametrize("decode", ["holding", "users"])
def test_payload_decoders_refuse_by_name(decode: str) -> None:
    setup, draw = _setup(), np.random.default_rng(2)
    content, decoder = {
        "holding": (bytes(4) + bytes(36), lambda b: holding_of(setup, b)),
        "users": (b"\x0f" + bytes(32), setup.users_of),
    }[decode]
    assert decoder(content)
    target = Target(setup.session, b"", decoder)
    assert sum(_taken(target, _mutated(draw, content)) for _ in range(10_000)) < 5000


def test_refusals_are_printed_safely_and_short() -> None:
    words = b"BadSeal: \x1b[2J\n\xff\0" + "Λ".encode()
    place, text = read_refusal(b"\0\0\0\7" + words)
    assert (place, text) == (7, r"BadSeal: \x1b[2J\n\xff\x00\xce\x9b")
    for bad in (b"", b"\0\0\0", bytes(500)):
        with pytest.raises(ProtocolError, match="refusal must be 4 to"):
            read_refusal(bad)


def test_lengths_follow_from_d_w_and_s() -> None:
    setup = _setup()
    user = ReplicatedUser(setup, 3, KEYS[3], VolatileJournal())
    for server, message in user.submit(VECTOR):
        assert len(payload_of(message)) == setup.share_bytes(server)
    assert setup.share_bytes(LAST) == 32 * S + SEAL_BYTES + 2 * 32
    assert setup.share_bytes(FIRST) == 32 * S + SEAL_BYTES + 2 * 32 + 8 * D
    assert setup.opening_bytes == 32 + 2 * 8 * D
    assert setup.commit_bytes == 1 + 32
