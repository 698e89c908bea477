"""A step is taken once, across restarts, races and crashes."""

import os
from pathlib import Path

import pytest

from tests.train_distributed.secure_sum.simulate import VolatileJournal
from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import DurableJournal, Journal, ResumedJournal

SESSION = b"s" * 32


@pytest.fixture(params=[VolatileJournal, DurableJournal])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return request.param(*[tmp_path / "journal"] * (request.param is DurableJournal))


def test_a_step_is_claimed_once(journal: Journal) -> None:
    journal.claim(SESSION, "open", b"set")
    for detail in (b"set", b"another set"):
        with pytest.raises(AlreadyOpened, match="open must happen once per session"):
            journal.claim(SESSION, "open", detail)
    journal.claim(SESSION, "commit", b"set")
    journal.claim(b"t" * 32, "open", b"set")


def test_a_restart_remembers(tmp_path: Path) -> None:
    DurableJournal(tmp_path).claim(SESSION, "open", b"\x01\x02")
    with pytest.raises(AlreadyOpened):
        DurableJournal(tmp_path).claim(SESSION, "open", b"\x01\x02")
    assert DurableJournal(tmp_path).detail(SESSION, "open") == b"\x01\x02"


def test_a_journal_is_the_same_from_every_directory(tmp_path, monkeypatch) -> None:
    """With a relative path, another working directory had all sessions left."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="journal must be an absolute path"):
        DurableJournal(Path("journal"))


def test_new_directories_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = set[Path](), os.fsync

    def remembered(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remembered)
    DurableJournal(tmp_path / "a" / "b").claim(SESSION, "open", b"")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= synced


def test_a_place_that_cannot_be_written_is_named_before_the_step(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="journal cannot be written: Not a directory"):
        DurableJournal(tmp_path / "file" / "journal").check()


def test_a_resumed_step_is_the_same_step(journal: Journal) -> None:
    assert journal.detail(SESSION, "open") is None
    resumed = ResumedJournal(journal)
    resumed.claim(SESSION, "open", b"set")
    assert resumed.detail(SESSION, "open") == b"set"
    resumed.claim(SESSION, "open", b"set")
    with pytest.raises(AlreadyOpened):
        resumed.claim(SESSION, "open", b"another set")
