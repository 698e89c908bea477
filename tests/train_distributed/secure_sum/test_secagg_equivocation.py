"""A server that tells users different stories, or hides users from each other, opens nothing."""

import hashlib
from collections.abc import Callable

import numpy as np
import pytest

from tests.train_distributed.secure_sum.simulate import Drive, make_secagg
from train_distributed.secure_sum import errors
from train_distributed.secure_sum.keys import EVERYONE
from train_distributed.secure_sum.packets import KEY
from train_distributed.secure_sum.secagg import SERVER, unpack_entries
from train_distributed.secure_sum.shamir import SHARE_BYTES
from train_distributed.secure_sum.wire import Kind, payload_of, signature_of

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
