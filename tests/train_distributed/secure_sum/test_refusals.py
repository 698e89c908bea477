"""Messages that are malformed, misplaced or of different stories are refused: nothing opens."""

import gc
import hashlib
import random
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from tests.changed_bytes import changed
from tests.train_distributed.secure_sum.simulate import Drive, VolatileJournal, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.keys import EVERYONE, PrivateKeys
from train_distributed.secure_sum.packets import DEAL_BYTES, KEY
from train_distributed.secure_sum.secagg import (
    ADVERTISE_BYTES,
    COMPLAINT_BYTES,
    SERVER,
    Advert,
    unpack_entries,
)
from train_distributed.secure_sum.secagg_server import SecAggServer
from train_distributed.secure_sum.secagg_user import SecAggUser
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import OVERHEAD, Kind, payload_of, signature_of

RECEIVER = 42  # offset of the receiver's identity
SENDER = 38
MANGLED = {
    "empty": (lambda m: b"", errors.TruncatedMessage),
    "header only": (lambda m: m[:54], errors.TruncatedMessage),
    "last byte cut": (lambda m: m[:-1], errors.TruncatedMessage),
    "a byte more": (lambda m: m + b"\0", errors.OversizedMessage),
    "length too large": (lambda m: m[:46] + b"\1" + m[47:], errors.TruncatedMessage),
    "length too small": (lambda m: m[:53] + b"\0" + m[54:], errors.OversizedMessage),
    "other magic": (lambda m: b"X" + m[1:], errors.MalformedMessage),
    "other version": (lambda m: m[:4] + b"\2" + m[5:], errors.MalformedMessage),
    "unknown kind": (lambda m: m[:5] + b"\xff" + m[6:], errors.MalformedMessage),
    "other session": (lambda m: m[:6] + bytes(32) + m[38:], errors.WrongSession),
    "stranger": (lambda m: m[:SENDER] + b"\0\0\1\1" + m[SENDER + 4 :], errors.WrongSender),
    "another's name": (lambda m: m[:SENDER] + b"\0\0\0\1" + m[SENDER + 4 :], errors.BadSignature),
    "for another": (lambda m: m[:RECEIVER] + b"\0\0\1\1" + m[RECEIVER + 4 :], errors.WrongReceiver),
    "payload bit": (lambda m: m[:60] + bytes([m[60] ^ 1]) + m[61:], errors.BadSignature),
    "signature bit": (lambda m: m[:-1] + bytes([m[-1] ^ 1]), errors.BadSignature),
}


@pytest.mark.parametrize("stage", range(5))
def test_a_message_that_is_mangled_misdelivered_or_repeated_is_refused_and_forgotten(
    stage: int,
) -> None:
    parties = make_secagg(np.full((3, 4), 7, np.uint64))
    again = (errors.ReplayedMessage, errors.OutOfOrder)
    answers = {i: user.start() for i, user in enumerate(parties.users)}
    for current in range(5):
        for mangle, error in MANGLED.values() if current == stage else ():
            with pytest.raises(error):
                parties.server.receive(mangle(answers[0]))
        for answer in answers.values():
            parties.server.receive(answer)
        with pytest.raises(again):
            parties.server.receive(answers[1])
        if current < 4:
            questions = parties.server.advance()
            for mangle, error in MANGLED.values() if current == stage else ():
                with pytest.raises(error):
                    parties.users[2].receive(mangle(questions[2]))
            with pytest.raises(errors.WrongReceiver):
                parties.users[1].receive(questions[2])
            answers = {i: parties.users[i].receive(q) for i, q in questions.items()}
            with pytest.raises(again):
                parties.users[1].receive(questions[1])
    assert parties.server.finish().total.tolist() == [21] * 4
    with pytest.raises(errors.OutOfOrder):
        parties.server.receive(answers[1])


def test_a_party_takes_part_once_per_session() -> None:
    vector, journal = np.zeros(3, np.uint64), VolatileJournal()
    parties = make_secagg(np.zeros((3, 3), np.uint64))
    same = {"keys": parties.keys, "nonce": parties.session.nonce}
    for attempt in range(2):  # a restarted user, the same journal
        again = make_secagg(np.zeros((3, 3), np.uint64), **same)
        again.users[0] = SecAggUser(again.setup, 0, again.keys[0], vector, journal)
        question = again.questions(Kind.INBOX)[0]
        if attempt:
            with pytest.raises(errors.AlreadyOpened, match="submit must happen once"):
                again.users[0].receive(question)
        else:
            again.users[0].receive(question)


def test_pinned_keys_and_vectors_are_checked() -> None:
    setup = make_secagg(np.zeros((2, 3), np.uint64)).setup
    with pytest.raises(ValueError, match="keys must be those that the session pins"):
        SecAggServer(setup, PrivateKeys.generate(), VolatileJournal())
    for bad in (np.zeros(2, np.uint64), np.zeros(4, np.uint64), np.zeros(3, np.int64)):
        with pytest.raises(ValueError, match=r"vector must be \(3,\) uint64"):
            SecAggUser(setup, 0, PrivateKeys.generate(), bad, VolatileJournal())  # pyright: ignore[reportArgumentType]


def test_a_peer_named_alive_and_dropped_is_refused() -> None:
    parties = make_secagg(np.zeros((5, 3), np.uint64))
    question, session = parties.questions(Kind.UNMASK)[0], parties.setup.session
    payload = payload_of(question)
    assert payload[:2] == session.bitmap(range(5)) + session.bitmap([])
    both = payload[:1] + session.bitmap([3]) + payload[2:]
    fewer = session.bitmap([0, 1, 2, 3]) + session.bitmap([4]) + payload[2:]
    silent = session.bitmap([0, 1, 2, 3]) + session.bitmap([]) + payload[2:]
    for forged, error in [
        (both, errors.ContradictoryRequest),
        (fewer, errors.SetMismatch),
        (silent, errors.SetMismatch),
        (payload[:2] + b"\1" + payload[3:], errors.TooFewUsers),  # one signature is not enough
        (payload[:2] + b"\x0f\x10" + payload[4:], errors.TooFewUsers),  # nor one per user shown
        (payload[:4] + payload[68:132] + payload[68:], errors.BadSignature),  # user 1's as user 0's
        (payload[:4] + bytes(len(payload) - 4), errors.BadSignature),
        (payload[:-1], errors.MalformedMessage),
        (payload[:1], errors.MalformedMessage),
    ]:
        with pytest.raises(error):
            parties.users[0].receive(parties.sign(Kind.UNMASK, SERVER, 0, forged))
    reveal = parties.users[0].receive(question)  # refusals changed nothing
    parties.server.receive(reveal)
    with pytest.raises(errors.OutOfOrder, match="outside a session"):
        parties.users[0].receive(question)  # not even the same request twice
    with pytest.raises(errors.OutOfOrder):
        parties.users[0].receive(parties.sign(Kind.UNMASK, SERVER, 0, fewer))


def test_users_take_orders_from_the_server_alone() -> None:
    parties = make_secagg(np.zeros((5, 3), np.uint64))
    adverts = [user.start() for user in parties.users]
    with pytest.raises(errors.WrongSender, match="sender must be the server"):
        parties.users[0].receive(parties.sign(Kind.NEIGHBOURS, 1, 0, b"".join(adverts[1:])))
    for joined, error in [
        (adverts[1] + adverts[1], errors.ReplayedMessage),
        (adverts[1], errors.TooFewUsers),
        (adverts[0] + adverts[1], errors.WrongSender),  # a user is not its own neighbour
        (adverts[1][:-1], errors.MalformedMessage),
        (adverts[1] + adverts[2][:-1] + bytes([adverts[2][-1] ^ 1]), errors.BadSignature),
    ]:
        with pytest.raises(error):
            parties.users[0].receive(parties.sign(Kind.NEIGHBOURS, SERVER, 0, joined))


W, D, CORRUPT = 7, 5, 6
EVERYBODY = frozenset(range(W))
VECTORS = np.random.default_rng(0).integers(0, 2**64, (W, D), np.uint64)


class Liar:
    """The server's keys and user 6's, without the server's scruples; five of seven must sign."""

    def __init__(self, parties) -> None:
        self.parties, self.setup, self.session = parties, parties.setup, parties.setup.session
        assert self.setup.graph.signers == 5
        self.agreed: dict[int, bytes] = {}
        self.told: dict[int, bytes] = {}

    def tell(self, kind: Kind, user: int, payload: bytes) -> bytes:
        return self.parties.users[user].receive(self.parties.sign(kind, SERVER, user, payload))

    def introduced(self, hidden: dict[int, set[int]]) -> dict[int, bytes]:
        """All advertise, each is told of all but itself and who is hidden from it: its packets."""
        adverts = {u: user.start() for u, user in enumerate(self.parties.users)}
        sent = {}
        for u in adverts:
            told = b"".join(a for p, a in adverts.items() if p not in {u} | hidden.get(u, set()))
            sent[u] = payload_of(self.tell(Kind.NEIGHBOURS, u, told))
        return sent

    def until_masked(self, sharing: Callable[[int], frozenset[int]] = lambda u: EVERYBODY) -> None:
        """All advertise and share keys; each is told that `sharing(user)` did."""
        sent = self.introduced({})
        size = len(sent[0]) // (W - 1)
        for u in sent:
            packets = []
            for p in sorted(sharing(u) - {u}):
                place = u - (u > p)
                packets.append(sent[p][place * size : (place + 1) * size])
            inbox = self.session.bitmap(sharing(u)) + b"".join(packets)
            masked = self.tell(Kind.INBOX, u, inbox)
            rest = hashlib.sha256(payload_of(masked)[32:]).digest()
            self.told[u] = rest + signature_of(masked)

    def survive(self, users: frozenset[int], told_to: frozenset[int]) -> None:
        for u in told_to:
            answer = self.tell(Kind.SURVIVORS, u, self.session.bitmap(users))
            self.agreed[u] = signature_of(answer)

    def corrupt_signature(self, sharing: frozenset[int], survivors: frozenset[int]) -> bytes:
        bitmap = self.session.bitmap
        statement = self.setup.agreed(bitmap(sharing), bitmap(survivors))
        return signature_of(self.parties.sign(Kind.AGREED, CORRUPT, EVERYONE, statement))

    def unmask(
        self,
        user: int,
        alive: frozenset[int],
        signatures: dict[int, bytes],
        *,
        sharing: frozenset[int] = EVERYBODY,
        owned: frozenset[int] | None = None,
    ) -> bytes:
        witnesses = sorted((alive if owned is None else owned) - {user} - signatures.keys())
        bitmap = self.session.bitmap
        sets = (alive, sharing - alive, signatures, witnesses)
        signed = [signatures[u] for u in sorted(signatures)] + [self.told[u] for u in witnesses]
        return self.tell(Kind.UNMASK, user, b"".join([*map(bitmap, sets), *signed]))


@pytest.fixture
def liar() -> Liar:
    return Liar(make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2))


def test_different_survivors_for_different_users_open_nothing(liar: Liar) -> None:
    """Three honest users hear that all survived, three that user 0 dropped out."""
    liar.until_masked()
    first, second = frozenset({0, 1, 2}), frozenset({3, 4, 5})
    fewer = EVERYBODY - {0}
    liar.survive(EVERYBODY, first)
    liar.survive(fewer, second)
    mine = {u: liar.agreed[u] for u in first}
    mine[CORRUPT] = liar.corrupt_signature(EVERYBODY, EVERYBODY)
    with pytest.raises(errors.TooFewUsers, match="signers must be 5, got 4"):
        liar.unmask(1, EVERYBODY, mine)
    with pytest.raises(errors.BadSignature):  # another story's signature makes no fifth
        liar.unmask(1, EVERYBODY, mine | {3: liar.agreed[3]})
    with pytest.raises(errors.SetMismatch, match="that were agreed on"):
        liar.unmask(1, fewer, {u: liar.agreed[u] for u in second})
    theirs = {u: liar.agreed[u] for u in second}
    theirs[CORRUPT] = liar.corrupt_signature(EVERYBODY, fewer)
    with pytest.raises(errors.TooFewUsers):
        liar.unmask(3, fewer, theirs)


def test_different_users_that_shared_keys_open_nothing(liar: Liar) -> None:
    """Users 0 and 1 masked as if user 5 had not shared keys; the others with it."""
    without = EVERYBODY - {5}
    liar.until_masked(lambda u: without if u < 2 else EVERYBODY)
    liar.survive(without, frozenset({0, 1}))
    liar.survive(EVERYBODY, frozenset({2, 3, 4}))
    mine = {u: liar.agreed[u] for u in (2, 3, 4)}
    mine[CORRUPT] = liar.corrupt_signature(EVERYBODY, EVERYBODY)
    with pytest.raises(errors.BadSignature):
        liar.unmask(2, EVERYBODY, mine | {0: liar.agreed[0]})


def test_whoever_is_opened_must_have_masked_with_the_same_users(liar: Liar) -> None:
    """A quorum has one story, but user 0 masked by another: its seed is not revealed."""
    without = EVERYBODY - {5}
    liar.until_masked(lambda u: without if u == 0 else EVERYBODY)
    liar.survive(EVERYBODY, frozenset({1, 2, 3, 4, 5}))
    with pytest.raises(errors.BadSignature):
        liar.unmask(1, EVERYBODY, liar.agreed)
    with pytest.raises(errors.SetMismatch, match="of all whose shares are asked"):
        liar.unmask(1, EVERYBODY, liar.agreed, owned=EVERYBODY - {0})


def test_users_cannot_be_hidden_from_each_other(liar: Liar) -> None:
    liar.introduced({0: {1}, 1: {0}})
    with pytest.raises(errors.SetMismatch, match=r"must have advertised, got \[1\]"):
        liar.tell(Kind.INBOX, 0, liar.session.bitmap(EVERYBODY))


def test_a_user_hidden_from_one_on_its_list_does_not_mask(liar: Liar) -> None:
    """User 0 knows of 1, which was not told of 0: the word that 0 needs cannot be made up."""
    sent = liar.introduced({1: {0}})
    size = len(sent[0]) // (W - 1)
    packets = [sent[p][:size] for p in range(1, W)]
    assert len(sent[1]) == (W - 2) * size  # the first is for user 2
    answer = liar.tell(Kind.INBOX, 0, liar.session.bitmap(EVERYBODY) + b"".join(packets))
    assert answer[5] == Kind.COMPLAINT
    with pytest.raises(errors.MalformedMessage):
        liar.tell(Kind.INBOX, 2, liar.session.bitmap(EVERYBODY) + b"".join(packets[1:]))


def test_a_user_skipped_after_masking_keeps_its_seed() -> None:
    """Its vector reached the server, which denies it: everyone reveals its mask key alone."""
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2)
    held: dict[int, tuple[bytes, bytes]] = {}
    revealed: dict[int, bytes] = {}

    def answer(kind: Kind, user: int, message: bytes) -> bytes | None:
        if kind is Kind.AGREED:
            held[user] = parties.users[user]._shares[4]
        if kind is Kind.REVEAL:
            revealed[user] = unpack_entries(payload_of(message), SHARE_BYTES)[4]
        return None if (kind, user) == (Kind.MASKED, 4) else message

    opened = Drive(parties, answer).run()
    assert opened.users == EVERYBODY - {4}
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    assert revealed == {user: both[KEY] for user, both in held.items()}
    assert len(revealed) == 6


def test_survivors_are_enough_include_the_user_and_are_agreed_to_once(liar: Liar) -> None:
    liar.until_masked()
    four = frozenset({0, 1, 2, 3})
    with pytest.raises(errors.TooFewUsers, match="survived must be >= 5, got 4"):
        liar.tell(Kind.SURVIVORS, 0, liar.session.bitmap(four))
    with pytest.raises(errors.SetMismatch, match="must include this user"):
        liar.tell(Kind.SURVIVORS, 0, liar.session.bitmap(EVERYBODY - {0}))
    with pytest.raises(errors.OutOfOrder, match="SURVIVORS must come next"):
        liar.tell(Kind.UNMASK, 0, bytes(2))
    liar.survive(EVERYBODY, frozenset({0}))
    with pytest.raises(errors.ReplayedMessage):
        liar.tell(Kind.SURVIVORS, 0, liar.session.bitmap(EVERYBODY))


def test_survivors_must_have_shared_keys(liar: Liar) -> None:
    liar.until_masked(lambda u: EVERYBODY - {5} if u != 5 else EVERYBODY)
    with pytest.raises(errors.SetMismatch, match=r"survivors must have shared keys, got \[5\]"):
        liar.tell(Kind.SURVIVORS, 0, liar.session.bitmap(EVERYBODY))


def test_signatures_of_another_session_are_worth_nothing(liar: Liar) -> None:
    other = Liar(make_secagg(VECTORS, corrupt_fraction=0.2, keys=liar.parties.keys))
    for each in (liar, other):
        each.until_masked()
        each.survive(EVERYBODY, frozenset(range(5)))
    with pytest.raises(errors.BadSignature):
        liar.unmask(0, EVERYBODY, other.agreed)
    assert liar.unmask(0, EVERYBODY, liar.agreed)[5] == Kind.REVEAL
    with pytest.raises(errors.OutOfOrder, match="outside a session"):
        liar.unmask(0, EVERYBODY, liar.agreed)


def test_a_vector_is_asked_for_when_it_is_masked_and_spent_when_signed(liar: Liar) -> None:
    asked: list[int] = []

    def vector() -> np.ndarray:
        asked.append(1)
        return VECTORS[0]

    user = liar.parties.users[0]
    user._vector = vector
    adverts = {u: each.start() for u, each in enumerate(liar.parties.users)}
    liar.tell(Kind.NEIGHBOURS, 0, b"".join(a for p, a in adverts.items() if p))
    assert not asked
    fresh = Liar(liar.parties)
    fresh.until_masked()
    assert asked == [1]
    assert not user.agreed
    fresh.survive(EVERYBODY, frozenset({0}))
    assert user.agreed


LIAR = 0
# Whatever has the right length is a statement that its sender may make.
OPAQUE = ["ADVERTISE", "KEY_SHARES", "MASKED", "SURVIVORS", "COMPLAINT", "DEFENCE", "EXPOSED"]
PUBLIC = (Kind.ADVERTISE, Kind.AGREED, Kind.COMPLAINT)
QUESTIONS = ["NEIGHBOURS", "INBOX", "SURVIVORS", "UNMASK", "ACCUSED", "CONVICTED"]
# So are whole messages of others in another order, or fewer of them; bytes of their payloads.
PASSED_ON = {Kind.NEIGHBOURS: ADVERTISE_BYTES, Kind.ACCUSED: COMPLAINT_BYTES}
FALSE = (Kind.CONVICTED, Kind.EXPOSED)  # there if user 0 advertises another commitment
TARGETS = [kind for kind in Kind if kind >= Kind.ADVERTISE]


class Fuzzer:
    """Sends mutations of one message of a session to whoever takes it, `count` of either sort."""

    def __init__(self, parties, target: Kind, count: int) -> None:
        self.parties, self.target, self.count = parties, target, count
        self.victim = LIAR if target is Kind.COMPLAINT else 2
        self.packet = b""  # user 2's for the liar
        self.draw = random.Random(int(target))
        self.refused = self.peak = 0
        self.names: set[str] = set()

    def attack(self, kind: Kind, user: int, message: bytes) -> bytes:
        """Where the session has no complaint and there should be one, user 0 invents it."""
        if kind is Kind.INBOX and user == LIAR:
            self.packet = payload_of(message)[1 + DEAL_BYTES : 1 + 2 * DEAL_BYTES]
        invented = self.target in (Kind.COMPLAINT, Kind.ACCUSED, Kind.DEFENCE)
        if kind is Kind.MASKED and user == LIAR and invented:
            named = (2).to_bytes(4, "big") + hashlib.sha256(self.packet).digest()
            kind = Kind.COMPLAINT
            message = self.parties.sign(kind, LIAR, EVERYONE, named)
        if kind is Kind.ADVERTISE and user == LIAR and self.target in FALSE:
            machine, payload = self.parties.users[LIAR], payload_of(message)
            machine._advert = Advert(payload[:64] + bytes(32) + payload[96:])
            message = self.parties.sign(kind, LIAR, EVERYONE, machine._advert.payload)
        if (kind, user) == (self.target, self.victim):
            self._send(message, kind.name in QUESTIONS)
        return message

    def _send(self, message: bytes, question: bool) -> None:
        kind = Kind(message[5])
        sender = SERVER if question else self.victim
        to = self.victim if question else EVERYONE if kind in PUBLIC else SERVER
        payload = payload_of(message)
        machine = self.parties.users[self.victim] if question else self.parties.server
        before = 0
        gc.freeze()  # so that to collect takes no longer in a large process
        tracemalloc.start()
        for turn in range(2 * self.count):
            if turn % 2:
                found = changed(payload, self.draw)
                true = may_say(kind, payload, found)
                copy = self.parties.sign(kind, sender, to, found)
            else:
                copy, true = changed(message, self.draw), False
            if not true:
                self._refuse(machine, copy)
            if turn == self.count // 2:
                gc.collect()  # errors hold their frames until then
                tracemalloc.reset_peak()
                before, _ = tracemalloc.get_traced_memory()
        gc.collect()
        after, self.peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        gc.unfreeze()
        assert after - before < 20_000
        assert self.peak - before < 200_000

    def _refuse(self, machine, copy: bytes) -> None:
        if machine is self.parties.server:  # an insider is out at once; here it may go on trying
            machine._invited |= {self.victim}
        try:
            answer = machine.receive(copy)
        except ProtocolError as error:
            self.refused += 1
            self.names.add(type(error).__name__)
            if machine is self.parties.server:
                machine._invited |= {self.victim}
                machine.culprits.clear()
        else:  # a damaged packet in a well-formed INBOX is complained about: no vector is sent
            assert answer is not None
            assert answer[5] == Kind.COMPLAINT
            machine._expected = Kind.INBOX
            self.refused += 1


def may_say(kind: Kind, payload: bytes, found: bytes) -> bool:
    """Whether a changed payload is another statement that its sender may make."""
    if kind in PASSED_ON:
        size = OVERHEAD + PASSED_ON[kind]
        said, known = (
            [each[i : i + size] for i in range(0, len(each), size)] for each in (found, payload)
        )
        return len(said) == len(set(said)) and set(said) <= set(known)
    return kind.name in OPAQUE and len(found) == len(payload)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("count", [30, pytest.param(5_000, marks=pytest.mark.slow)])
def test_mutated_messages_are_refused_by_name(target, count) -> None:
    parties = make_secagg(VECTORS, corrupt_fraction=0.2, dropout_fraction=0.2)
    fuzzer = Fuzzer(parties, target, count)
    opened = Drive(parties, fuzzer.attack, fuzzer.attack).run()
    assert np.array_equal(opened.total, VECTORS[sorted(opened.users)].sum(0))
    assert len(opened.users) == W - (target >= Kind.COMPLAINT)  # as if nothing had been sent
    assert fuzzer.refused >= count
    assert len(fuzzer.names) >= 4
