"""A step is taken once, across restarts, races and crashes."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from train_distributed.secure_sum.errors import AlreadyOpened
from train_distributed.secure_sum.journal import DurableJournal, Journal, VolatileJournal

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
