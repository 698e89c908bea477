"""A step is taken once, across restarts, races and crashes."""

import errno
import os
from concurrent.futures import ThreadPoolExecutor
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
    entries = list((tmp_path / "new" / "folder").iterdir())
    assert [entry.name for entry in entries] == [f"{SESSION.hex()}.open"]
    assert entries[0].read_text() == "0102"


def test_a_crash_before_the_entry_appears_leaves_the_step_free(tmp_path: Path) -> None:
    (tmp_path / ".0123456789abcdef.partial").write_text("01")  # as a kill would leave it
    DurableJournal(tmp_path).claim(SESSION, "open", b"set")


def test_of_many_racing_claims_one_wins(tmp_path: Path) -> None:
    def claim(i: int) -> bool:
        try:
            DurableJournal(tmp_path).claim(SESSION, "open", bytes([i]))
        except AlreadyOpened:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(claim, range(64))) == 1


def test_a_journal_is_the_same_from_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a relative path, another working directory had all sessions left."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="journal must be an absolute path, got journal"):
        DurableJournal(Path("journal"))


def test_new_directories_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, fsync = set[Path](), os.fsync

    def remembered(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").resolve())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", remembered)
    DurableJournal(tmp_path / "a" / "b").claim(SESSION, "open", b"")
    assert {tmp_path, tmp_path / "a", tmp_path / "a" / "b"} <= synced


def test_a_full_disk_is_named_before_and_at_the_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = DurableJournal(tmp_path / "journal")
    journal.check()
    assert list((tmp_path / "journal").iterdir()) == []

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        words = "journal cannot be written: No space left on device"
        for attempt in (journal.check, lambda: journal.claim(SESSION, "open", b"x")):
            with pytest.raises(OSError, match=words) as caught:
                attempt()
            assert caught.value.filename == str(tmp_path / "journal")
    assert list((tmp_path / "journal").iterdir()) == []
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
