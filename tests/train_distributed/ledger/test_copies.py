"""A copy of a ledger never counts beside its original: each would miss what the other counts."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.train_distributed.ledger.ledger_entries import GAUSSIAN, STATED
from train_distributed.__main__ import MENU
from train_distributed.commands.counting import Merge, Show
from train_distributed.ledger.ledger import Ledger, Limit

COPY = r"ledger must be {original}, which counts for all copies, got its copy .*: --ledger "


@pytest.fixture
def original(tmp_path: Path) -> Ledger:
    """Ledger of the set `mine`, which has spent once."""
    (tmp_path / "mine").mkdir()
    ledger = Ledger.beside(tmp_path / "mine")
    ledger.spend(ledger.reserve(GAUSSIAN))
    return ledger


def copied(original: Ledger, place: Path) -> Path:
    """The set that a copy of the ledger lies beside, as `cp -r` makes both."""
    place.parent.mkdir(exist_ok=True)
    place.mkdir()
    shutil.copy(original.path, place.with_name(f"{place.name}.ledger"))
    return place


def chosen(embeddings: Path, given: Path | None = None) -> Ledger:
    ledger = Ledger.chosen(given, embeddings)
    assert ledger is not None
    return ledger


@pytest.mark.parametrize("place", ["copy", "elsewhere/mine"])
def test_a_copy_names_its_original_which_counts_for_both(original, tmp_path, place, capsys) -> None:
    copy = copied(original, tmp_path / place)
    beside = Ledger.beside(copy)
    for write in (
        lambda: chosen(copy),
        lambda: beside.reserve(GAUSSIAN),
        lambda: beside.limit(Limit(epsilon=1.0, delta=1e-5)),
        lambda: beside.spend(beside.state().records[0].id),
        lambda: beside.merge(original),
    ):
        with pytest.raises(ValueError, match=COPY.format(original=original.path)) as refused:
            write()
        assert "\n" not in str(refused.value)
    assert beside.state() == original.state()
    for shown in (beside, original):
        Show(ledger=shown.path).run()
        said = f"a copy: what counts is {original.path}, which may"
        assert (said in capsys.readouterr().out) is (shown is beside)
    chosen(copy, original.path).reserve(GAUSSIAN)  # as the error says
    chosen(tmp_path / "mine").reserve(GAUSSIAN)
    assert len(original.state().records) == 3
    assert len(beside.state().records) == 1


def test_a_ledger_that_has_a_limit_only_is_known_as_a_copy_too(tmp_path) -> None:
    (tmp_path / "mine").mkdir()
    original = Ledger.beside(tmp_path / "mine")
    original.limit(Limit(epsilon=1.5, delta=1e-5))
    copy = copied(original, tmp_path / "elsewhere" / "mine")
    with pytest.raises(ValueError, match=COPY.format(original=original.path)):
        Ledger.beside(copy).reserve(GAUSSIAN)


def test_what_was_moved_or_renamed_or_is_seen_by_another_path_goes_on(original, tmp_path) -> None:
    (tmp_path / "there").mkdir()
    moved = Ledger(original.path.rename(tmp_path / "there" / "rows.ledger"))
    moved.reserve(GAUSSIAN)
    (tmp_path / "link").symlink_to("there")
    Ledger(tmp_path / "link" / "rows.ledger").reserve(GAUSSIAN)
    again = Ledger(moved.path.rename(tmp_path / "there" / "other.ledger"))
    Ledger(tmp_path / "there" / "rows.ledger").reserve(replace(GAUSSIAN, data="of other rows"))
    again.reserve(GAUSSIAN)
    assert len(again.state().records) == 4


def test_a_place_that_has_a_ledger_of_other_rows_or_none_now_is_no_original(original, tmp_path):
    moved = Ledger(original.path.rename(tmp_path / "moved.ledger"))
    for content in (b"2026-01-01 * Opening balance\n", b""):
        original.path.write_bytes(content)
        moved.reserve(GAUSSIAN)
    original.path.unlink()
    original.path.mkdir()
    moved.reserve(GAUSSIAN)


def test_two_that_went_their_own_ways_are_refused_until_they_are_one(original, tmp_path) -> None:
    """As where the original was on another machine meanwhile."""
    away = tmp_path / "away"
    copy = copied(original, tmp_path / "copy")
    original.path.rename(away)
    Ledger.beside(copy).reserve(STATED)
    away.rename(original.path)
    other = tmp_path / "copy.ledger"
    with pytest.raises(ValueError, match=rf"be {other}, which counts .* --ledger {other}$"):
        original.reserve(GAUSSIAN)  # as the copy holds all of it, and more
    original.reserve(replace(GAUSSIAN, data="of other rows"))
    for ours, theirs in ((original.path, other), (other, original.path)):
        words = (
            f"without what {theirs} counts: blind-averaging ledger merge --ledger {ours} --other"
        )
        with pytest.raises(ValueError, match=words):
            Ledger(ours).reserve(GAUSSIAN)
    expected = Ledger.open(original.path).total().cost.squared_mu
    Merge(ledger=original.path, other=other).run()
    entries = [record.entry for record in original.state().records]
    assert entries == [GAUSSIAN, replace(GAUSSIAN, data="of other rows"), STATED]
    assert original.total().cost.squared_mu == expected
    assert original.total().cost.epsilon == STATED.epsilon
    original.reserve(GAUSSIAN)
    assert original.merge(Ledger(other)) == 0
    shutil.move(original.path, away)  # whatever becomes of the first
    with pytest.raises(ValueError, match=COPY.format(original=original.path)):
        Ledger(other).reserve(GAUSSIAN)


def test_ledgers_of_unrelated_rows_are_merged_whatever_the_limit(original, tmp_path) -> None:
    original.limit(Limit(epsilon=1.0, delta=1e-5))
    other = Ledger(tmp_path / "rows.ledger")
    for data in ("a", "b"):
        other.reserve(replace(GAUSSIAN, data=data))
    assert original.merge(other) == 2
    assert original.total().epsilon(1e-5) > 1.5
    with pytest.raises(ValueError, match="limit of ledger"):
        original.reserve(replace(GAUSSIAN, sigma=1e6))


def test_what_cannot_be_merged_is_refused(original, tmp_path) -> None:
    for other in (original.path, tmp_path / "nowhere.ledger"):
        with pytest.raises(ValueError, match="other must be another ledger that exists, got"):
            Merge(ledger=original.path, other=other).run()
    assert len(original.state().records) == 1
    typed = ["merge", "--embeddings", "mine", "--other", "o"]
    assert MENU.parse(["ledger", *typed], "x") == Merge(embeddings=Path("mine"), other=Path("o"))


def test_a_ledger_in_another_s_home_that_cannot_be_read_is_not_there(
    original, tmp_path, monkeypatch
) -> None:
    copy = copied(original, tmp_path / "elsewhere" / "mine")
    is_file = Path.is_file

    def closed(path: Path) -> bool:
        if path == original.path:
            raise PermissionError(13, "Permission denied", str(path))
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", closed)
    Ledger.beside(copy).reserve(GAUSSIAN)
