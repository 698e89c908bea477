"""An operator killed anywhere, started again: the exact sum, from vectors drawn once."""

from pathlib import Path
from typing import Any

import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.fake_relay import Killed
from train_distributed.federation.orders import Request
from train_distributed.federation.progress import Log
from train_distributed.federation.record import CannotResume, SessionLog, settle
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.store.store import read_store

ANSWERS = 5 + 5 * 5  # that a session needs: of PRESENT, then of START and what follows


def killed_at(relay: fake.FakeRelay, state: Path, count: int, *, answered: bool = True) -> None:
    """The operator dies before or after a question; nothing happens to the next."""
    left = count

    def strike(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    setattr(relay, "after" if answered else "before", strike)
    with pytest.raises(Killed):
        fake.operate(relay, None, state)
    relay.spare()


def test_killed_at_every_question_it_opens_the_same_session(tmp_path: Path) -> None:
    """Before the question has arrived, then after its answer was given."""
    for count in range(ANSWERS):
        relay, state = fake.FakeRelay(), tmp_path / str(count)
        killed_at(relay, state, count, answered=False)
        killed_at(relay, state, min(count, fake.W))  # who is there is asked again
        assert fake.operate(relay, None, state) == fake.ALL
        assert set(relay.drawn.values()) == {1}


def test_killed_twice_and_killed_after_the_end(tmp_path: Path) -> None:
    relay = fake.FakeRelay()
    for count in (9, 14):
        killed_at(relay, tmp_path, count)
    users = fake.operate(relay, None, tmp_path)
    relay.endpoints.clear()  # it was killed before the model was saved: nobody is needed
    assert fake.operate(relay, None, tmp_path) == users
    settle(tmp_path)
    with SessionLog(tmp_path) as record:
        assert record.session is None
    assert read_store(tmp_path / "session", "record") == []


@pytest.mark.parametrize("gone", [1, 3])
def test_users_that_die_with_the_operator_are_dropouts(gone: int, tmp_path: Path) -> None:
    """Killed while masked vectors come: with the sum of the others, or a named refusal."""
    relay, log = fake.FakeRelay(), Log()
    killed_at(relay, tmp_path, 5 + 5 + 5 + 3)
    for user in range(5 - gone, 5):
        relay.endpoints[10 + user] = relay.user(user)  # started again: without its session
    if gone == 1:
        assert fake.operate(relay, log, tmp_path) >= set(range(4))
    else:
        with pytest.raises(ProtocolError):
            fake.operate(relay, log, tmp_path)
        assert any("START must come first" in text for text in log.refused)
    assert max(relay.drawn.values()) == 1


def test_a_record_that_is_another_file_or_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "session"
    path.write_bytes(b"\x01" + bytes(20))
    with pytest.raises(ValueError, match="session must be a session's, got another file"):
        fake.operate(fake.FakeRelay(), None, tmp_path)
    assert path.read_bytes() == b"\x01" + bytes(20)
    path.unlink()
    with SessionLog(tmp_path) as record:
        record.begin(bytes(33))
        record.add(record.call({1: b"question"}), 1, bytes(9000))
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="session must be"), SessionLog(tmp_path):
        pass


def test_what_does_not_follow_from_the_record_is_not_asked(tmp_path: Path) -> None:
    with SessionLog(tmp_path) as record:
        record.begin(bytes(33))
        call = record.call({1: b"question"})
        record.add(call, 1, b"answer")
        record.finish(call)
    with SessionLog(tmp_path) as record:
        assert record.session == bytes(33)
        with pytest.raises(CannotResume, match="call 0 must be the one before the restart"):
            record.call({1: b"another"})
        with pytest.raises(ValueError, match="one operator's, another runs"), SessionLog(tmp_path):
            pass


def test_a_full_disk_ends_it_before_anything_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay, asked = fake.FakeRelay(), list[int]()
    relay.before = lambda node, request: asked.append(request[0])

    def full(self: SessionLog) -> None:
        if self._complete:
            raise OSError(28, "No space left on device", str(tmp_path))

    with monkeypatch.context() as patched:
        patched.setattr(SessionLog, "sync", full)
        with pytest.raises(OSError, match="No space left on device"):
            fake.operate(relay, None, tmp_path)
    assert Request.DELIVER not in asked
    assert not relay.drawn
    assert fake.operate(relay, None, tmp_path) == fake.ALL
