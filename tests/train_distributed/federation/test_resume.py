"""An operator killed anywhere, started again: the exact sum, from vectors drawn once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.train_distributed.federation import fake_relay as fake
from tests.train_distributed.federation.centre_relay import Killed
from train_distributed.federation.orders import Request
from train_distributed.federation.progress import Log
from train_distributed.federation.record import CannotResume, SessionLog, settle
from train_distributed.secure_sum.errors import ProtocolError
from train_distributed.secure_sum.journal import DurableJournal
from train_distributed.store.store import read_store

ANSWERS = 5 + 5 * 5  # that a session needs: of PRESENT, then of START and what follows


def _operate(relay: Any, state: Path, log: Log | None = None):
    return fake.operate(relay, log, state, DurableJournal(state / "journal"))


def _kill_at(relay: Any, count: int, *, answered: bool) -> None:
    left = count

    def strike(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    relay.before, relay.after = lambda *_: None, lambda *_: None
    setattr(relay, "after" if answered else "before", strike)


def _spare(relay: Any) -> None:
    relay.before, relay.after = lambda *_: None, lambda *_: None


def test_killed_at_every_question_it_opens_the_same_session(tmp_path: Path) -> None:
    """Before the question has arrived, then after its answer was given."""
    for count in range(ANSWERS):
        relay = fake.volatile(fake.agreement())
        state = tmp_path / str(count)
        presence = fake.W  # who is there is asked again
        for answered, asked in ((False, count), (True, min(count, presence))):
            _kill_at(relay, asked, answered=answered)
            with pytest.raises(Killed):
                _operate(relay, state)
        _spare(relay)
        opened = _operate(relay, state)
        assert opened.users == frozenset(range(fake.W))
        assert np.array_equal(opened.total, fake.VECTORS.sum(0))
        assert set(relay.drawn.values()) == {1}


def test_killed_twice_and_killed_after_the_end(tmp_path: Path) -> None:
    relay = fake.volatile(fake.agreement())
    for count in (9, 14):
        _kill_at(relay, count, answered=True)
        with pytest.raises(Killed):
            _operate(relay, tmp_path)
    _spare(relay)
    total = _operate(relay, tmp_path).total
    for node in list(relay.endpoints):  # it was killed before the model was saved: nobody is needed
        del relay.endpoints[node]
    relay.nodes = list
    assert np.array_equal(_operate(relay, tmp_path).total, total)
    settle(tmp_path)
    with SessionLog(tmp_path) as record:
        assert record.session is None
    assert read_store(tmp_path / "session", "record") == []


@pytest.mark.parametrize("gone", [1, 3])
def test_users_that_die_with_the_operator_are_dropouts(gone: int, tmp_path: Path) -> None:
    """Killed while masked vectors come: with the sum of the others, or a named refusal."""
    relay = fake.volatile(fake.agreement())
    _kill_at(relay, 5 + 5 + 5 + 3, answered=True)
    with pytest.raises(Killed):
        _operate(relay, tmp_path)
    _spare(relay)
    for node in range(14, 14 - gone, -1):
        relay.endpoints[node] = relay.user(node - 10)  # started again: without its session
    log = Log()
    if gone == 1:
        opened = _operate(relay, tmp_path, log)
        assert np.array_equal(opened.total, fake.VECTORS[sorted(opened.users)].sum(0))
        assert opened.users >= frozenset(range(4))
    else:
        with pytest.raises(ProtocolError):
            _operate(relay, tmp_path, log)
        assert any("START must come first" in text for text in log.refused)
    assert max(relay.drawn.values()) == 1


def test_a_record_that_is_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "session").write_bytes(b"\x01" + bytes(20))
    with pytest.raises(ValueError, match="session must be a session's, got another file"):
        _operate(fake.volatile(fake.agreement()), tmp_path)
    assert (tmp_path / "session").read_bytes() == b"\x01" + bytes(20)


def test_a_damaged_record_is_refused(tmp_path: Path) -> None:
    with SessionLog(tmp_path) as record:
        record.begin(bytes(33))
        record.add(record.call({1: b"question"}), 1, bytes(9000))
    content = bytearray((tmp_path / "session").read_bytes())
    content[-100] ^= 1
    (tmp_path / "session").write_bytes(bytes(content))
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
    with (
        SessionLog(tmp_path),
        pytest.raises(ValueError, match="one operator's, another runs"),
        SessionLog(tmp_path),
    ):
        pass


def test_a_full_disk_ends_it_before_anything_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relay = fake.volatile(fake.agreement())
    asked: list[int] = []
    relay.before = lambda node, request: asked.append(request[0])
    with monkeypatch.context() as patched:

        def full(self: SessionLog) -> None:
            if self._complete:
                raise OSError(28, "No space left on device", str(tmp_path))

        patched.setattr(SessionLog, "sync", full)
        with pytest.raises(OSError, match="No space left on device"):
            _operate(relay, tmp_path)
    assert Request.DELIVER not in asked
    assert set(relay.drawn.values()) == {0}
    assert np.array_equal(_operate(relay, tmp_path).total, fake.VECTORS.sum(0))
