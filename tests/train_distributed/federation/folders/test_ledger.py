"""What a user's folder gives away: counted when it is given, whatever the operators agree on."""

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.train_distributed.federation.folders.homes import federation_of
from tests.train_distributed.ledger.ledger_entries import GAUSSIAN
from train_distributed import accounting
from train_distributed.federation.documents import sessions
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.ledger import BudgetedJournal, FederationAccount, Limits
from train_distributed.federation.documents.sessions import read_ledger, remember
from train_distributed.ledger.entry import Limit
from train_distributed.ledger.ledger import Ledger
from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import DurableJournal

SIGMA = accounting.noise_multiplier(5.0, 1e-5)  # epsilon 5 of one session
SESSION = replace(GAUSSIAN, method="discriminant", epsilon=5.0, sigma=SIGMA)


def epsilon(sessions: int) -> float:
    return accounting.epsilon(1e-5, SIGMA, sessions)


@pytest.fixture
def two(initiated) -> tuple[Path, list[Federation]]:
    """User 0's folder, and two federations that it is in, of two sessions of epsilon 5 each."""
    home = initiated(sessions=2)
    first = federation_of(home)
    return home / "user0", [first, structs.replace(first, corrupt_fraction=0.05)]


def journal_of(
    folder: Path, federation: Federation, most_epsilon: float = 10.0, *, counted: bool = True
) -> BudgetedJournal:
    beside = Ledger.open(folder / "embeddings.ledger") if counted else None
    limits = Limits(most_epsilon=most_epsilon)
    account = FederationAccount(folder, federation, SESSION, beside, limits)
    account.check()
    return BudgetedJournal(account, DurableJournal(remember(folder, federation, 0)))


def test_federations_under_way_at_once_share_one_limit(two) -> None:
    folder, federations = two
    most = epsilon(3) * (1 + 1e-8)
    one, other = (journal_of(folder, federation, most) for federation in federations)
    for place in range(2):
        one.claim(federations[0].digest, f"session{place}", b"n" * 32)
    other.claim(federations[1].digest, "session0", b"n" * 32)
    needed = f"{epsilon(4):g}, got {most:g}: .* at delta 1e-05, of which {epsilon(2):g} was given"
    with pytest.raises(ValueError, match=f"most_epsilon must be >= {needed}"):
        other.claim(federations[1].digest, "session1", b"n" * 32)
    other.claim(federations[1].digest, "start0", b"n" * 32)  # gives nothing away
    assert [entry.used for entry in read_ledger(folder)].count(0) == 0
    assert sum(entry.used for entry in read_ledger(folder)) == 3
    counted = Ledger.open(folder / "embeddings.ledger")
    assert counted.total().epsilon(1e-5) == pytest.approx(epsilon(3), rel=1e-9)
    kinds = [record.entry.kind for record in counted.state().records]
    assert kinds == ["release", "re-release", "re-release"]
    assert other.detail(federations[1].digest, "session1") is None


def test_what_no_ledger_holds_is_added_up_from_the_journals(two) -> None:
    folder, federations = two
    one = journal_of(folder, federations[0], counted=False)
    one.claim(federations[0].digest, "session0", b"n" * 32)
    assert not (folder / "embeddings.ledger").exists()
    with pytest.raises(ValueError, match=r"of which 5 was given away by 1 other sum\(s\)"):
        journal_of(folder, federations[1], epsilon(2) + 4.99)
    other = journal_of(folder, federations[1], epsilon(2) + 5.01)
    other.claim(federations[1].digest, "session0", b"n" * 32)
    assert Ledger.open(folder / "embeddings.ledger").state().length == 1


def test_what_other_commands_spent_on_the_rows_counts(two) -> None:
    folder, (first, _) = two
    beside = Ledger.open(folder / "embeddings.ledger")
    beside.reserve(SESSION)
    with pytest.raises(ValueError, match=f"most_epsilon must be >= {epsilon(3):g}, got 8"):
        journal_of(folder, first, 8.0)
    journal_of(folder, first, epsilon(3) * (1 + 1e-8))
    beside.limit(Limit(epsilon=epsilon(2) * (1 + 1e-8), delta=1e-5))
    journal = journal_of(folder, first, 100.0)
    journal.claim(first.digest, "session0", b"n" * 32)
    with pytest.raises(ValueError, match=r"limit of ledger embeddings\.ledger must be >="):
        journal.claim(first.digest, "session1", b"n" * 32)
    assert journal.detail(first.digest, "session1") is None


def test_a_session_that_was_reserved_before_a_crash_is_reserved_once(two, monkeypatch) -> None:
    folder, (first, _) = two
    claim = DurableJournal.claim

    def crash(journal: DurableJournal, session: bytes, step: str, detail: bytes) -> None:
        if step == "session0":
            raise OSError("crash")
        claim(journal, session, step, detail)

    with monkeypatch.context() as patched:
        patched.setattr(DurableJournal, "claim", crash)
        with pytest.raises(OSError, match="crash"):
            journal_of(folder, first).claim(first.digest, "session0", b"n" * 32)
    counted = Ledger.open(folder / "embeddings.ledger")
    assert counted.state().length == 1
    journal_of(folder, first).claim(first.digest, "session0", b"n" * 32)
    assert counted.state().length == 1
    assert [entry.used for entry in read_ledger(folder)] == [1]


def test_sessions_that_a_lost_journal_knew_are_still_used_up(two) -> None:
    """Two were agreed on: whatever is lost between, two are spent, and no third."""
    folder, (first, _) = two
    counted = Ledger.open(folder / "embeddings.ledger")
    for used in (1, 2):
        journal = journal_of(folder, first)
        journal.check()
        with suppress(AlreadyOpened):  # the place that the lost session takes
            journal.claim(first.digest, "session0", b"n" * 32)  # an operator may repeat a nonce
        if used == 2:
            journal.claim(first.digest, "session1", b"n" * 32)
        assert [entry.used for entry in read_ledger(folder)] == [used]
        assert counted.state().length == used
        assert counted.total().epsilon(1e-5) == pytest.approx(epsilon(used), rel=1e-9)
        shutil.rmtree(folder / "state")
    with pytest.raises(ValueError, match=r"sessions must be <= 2, got one more: .* counts 2 of"):
        journal_of(folder, first).check()
    with pytest.raises(ValueError, match="sessions must be <= 2"):
        journal_of(folder, first).claim(first.digest, "session0", b"m" * 32)
    assert counted.state().length == 2


def test_copies_of_a_folder_that_spend_at_once_are_counted_twice(two) -> None:
    folder, (first, _) = two
    counted = Ledger.open(folder / "embeddings.ledger")
    account = FederationAccount(folder, first, SESSION, counted)
    for copy in ("one", "other"):
        account.reserve(DurableJournal(folder / copy), "session0", b"n" * 32)
    assert counted.state().length == 2


def test_second_sums_whose_journal_is_lost_are_not_answered_again(two) -> None:
    """Whether the lost session has answered one nobody knows, so no session is left."""
    folder, (first, _) = two
    two_sums = structs.replace(first, second_dimension=5)
    journal_of(folder, two_sums).claim(two_sums.digest, "session0", b"")
    shutil.rmtree(folder / "state")
    with pytest.raises(ValueError, match="sessions must be <= 2, got one more"):
        journal_of(folder, two_sums).check()


def test_a_federation_of_very_many_sessions_is_counted_at_once(two) -> None:
    folder, (first, _) = two
    many = structs.replace(first, sessions=2**31 - 1)
    journal = journal_of(folder, many, 1e12)
    journal.claim(many.digest, "session0", b"n" * 32)
    assert [entry.used for entry in read_ledger(folder)] == [1]


def test_promises_for_users_are_added_up_for_users(two) -> None:
    folder, (first, _) = two
    beside = Ledger.open(folder / "embeddings.ledger")
    user = replace(SESSION, unit="user")
    account = FederationAccount(folder, first, user, beside, Limits(most_epsilon=100.0))
    beside.reserve(replace(user, part="evaluation", split="s", kind="evaluation"))
    held = replace(account, entry=replace(user, part="train", split="s"))
    with pytest.raises(ValueError, match=f"most_epsilon must be >= {epsilon(3):g}"):
        replace(held, limits=Limits(most_epsilon=epsilon(2))).check()
    records = replace(held, entry=replace(SESSION, part="train", split="s"))
    most = Limits(most_epsilon=epsilon(2) * (1 + 1e-8))
    replace(records, limits=most).check()  # one record is in one part


def test_a_federation_whose_digest_begins_like_another_s_is_refused(two, monkeypatch) -> None:
    """64 bits name a folder's state, and an operator can find two federations that share them."""
    folder, federations = two
    state = remember(folder, federations[0], 0)
    monkeypatch.setattr(sessions, "state_of", lambda *_: state)
    assert remember(folder, federations[0], 0) == state
    with pytest.raises(ValueError, match="must be of federation"):
        remember(folder, federations[1], 0)
