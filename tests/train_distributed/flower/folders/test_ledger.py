"""What a user's folder gives away: counted when it is given, whatever the operators agree on."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from train_distributed.flower.documents import ledger
from train_distributed.flower.documents.federation import Federation
from train_distributed.flower.documents.ledger import (
    BudgetedJournal,
    check_budget,
    read_ledger,
    remember,
)
from train_distributed.secure_sum.journal import DurableJournal


@pytest.fixture
def two(initiated: Callable[..., Path]) -> tuple[Path, list[Federation]]:
    """User 0's folder, and two federations that it is in, of two sessions of epsilon 5 each."""
    home = initiated(sessions=2)
    first = Federation.load(home / "fed" / "federation.json")
    return home / "user0", [first, replace(first, corrupt_fraction=0.05)]


def _journal(folder: Path, federation: Federation, budget: float | None) -> BudgetedJournal:
    check_budget(folder, federation, budget)
    plain = DurableJournal(remember(folder, federation, 0))
    return BudgetedJournal(folder, federation, budget, plain)


def test_federations_under_way_at_once_share_one_budget(
    two: tuple[Path, list[Federation]],
) -> None:
    """Both were admitted when nothing was spent: the second waits until the first has spent."""
    folder, federations = two
    one, other = (_journal(folder, federation, 15.0) for federation in federations)
    for place in range(2):
        one.claim(federations[0].digest, f"session{place}", b"n" * 32)
    other.claim(federations[1].digest, "session0", b"n" * 32)
    with pytest.raises(ValueError, match=r"budget must be >= 20, got 15: epsilon 10 was given"):
        other.claim(federations[1].digest, "session1", b"n" * 32)
    other.claim(federations[1].digest, "start0", b"n" * 32)  # gives nothing away
    assert sum(entry.spent for entry in read_ledger(folder)) == 15.0
    assert other.detail(federations[1].digest, "session1") is None


def test_without_a_budget_it_is_that_of_the_federation_alone(
    two: tuple[Path, list[Federation]],
) -> None:
    folder, federations = two
    one, other = (_journal(folder, federation, None) for federation in federations)
    for place in range(2):
        one.claim(federations[0].digest, f"session{place}", b"n" * 32)
    with pytest.raises(ValueError, match=r"budget must be >= 15, got 10: epsilon 10 was given"):
        other.claim(federations[1].digest, "session0", b"n" * 32)


def test_a_federation_of_very_many_sessions_is_counted_at_once(
    two: tuple[Path, list[Federation]],
) -> None:
    folder, (first, _) = two
    many = replace(first, sessions=2**31 - 1)
    journal = _journal(folder, many, None)
    journal.claim(many.digest, "session0", b"n" * 32)
    assert [entry.used for entry in read_ledger(folder)] == [1]


def test_a_federation_whose_digest_begins_like_another_s_is_refused(
    two: tuple[Path, list[Federation]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 bits name a folder's state, and an operator can find two federations that share them."""
    folder, federations = two
    state = remember(folder, federations[0], 0)
    monkeypatch.setattr(ledger, "_state", lambda *_: state)
    assert remember(folder, federations[0], 0) == state
    with pytest.raises(ValueError, match="must be of federation"):
        remember(folder, federations[1], 0)
