"""A step is taken once, across restarts, races and crashes."""

import os
from pathlib import Path

import pytest

from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import (
    DurableJournal,
    Journal,
    ResumedJournal,
    VolatileJournal,
)

SESSION = b"s" * 32


@pytest.mark.parametrize("volatile", [True, False])
def test_a_step_is_claimed_once(volatile: bool, tmp_path: Path) -> None:
    journal: Journal = VolatileJournal() if volatile else DurableJournal(tmp_path)
    journal.claim(SESSION, "open", b"set")
    for detail in (b"set", b"another set"):
        with pytest.raises(AlreadyOpened, match="open must happen once per session"):
            journal.claim(SESSION, "open", detail)
    journal.claim(SESSION, "commit", b"set")
    journal.claim(b"t" * 32, "open", b"set")


def test_a_restart_remembers(tmp_path: Path) -> None:
    DurableJournal(tmp_path / "new" / "folder").claim(SESSION, "open", b"\x01\x02")
    with pytest.raises(AlreadyOpened):
        DurableJournal(tmp_path / "new" / "folder").claim(SESSION, "open", b"\x01\x02")
    assert DurableJournal(tmp_path / "new" / "folder").detail(SESSION, "open") == b"\x01\x02"


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


def test_a_full_disk_is_named_before_and_at_the_step(tmp_path: Path) -> None:
    journal = DurableJournal(tmp_path / "journal")
    journal.check()

    def full() -> None:
        with journal._open() as store:
            store.connection.execute("PRAGMA max_page_count = 1")
            store.claim("open", bytes(99_999))

    with pytest.raises(OSError, match="journal cannot be written: No space left on device"):
        full()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="journal cannot be written: Not a directory"):
        DurableJournal(tmp_path / "file" / "journal").check()
    journal.claim(SESSION, "open", b"x")


@pytest.mark.parametrize("volatile", [True, False])
def test_a_resumed_step_is_the_same_step(volatile: bool, tmp_path: Path) -> None:
    journal: Journal = VolatileJournal() if volatile else DurableJournal(tmp_path)
    assert journal.detail(SESSION, "open") is None
    resumed = ResumedJournal(journal)
    resumed.claim(SESSION, "open", b"set")
    assert resumed.detail(SESSION, "open") == b"set"
    resumed.claim(SESSION, "open", b"set")
    with pytest.raises(AlreadyOpened):
        resumed.claim(SESSION, "open", b"another set")
