"""Masks added by several processes: each once, and no process or secret is left behind."""

import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum import masks, prg
from train_distributed.secure_sum.prg import CHUNK_WORDS

ROOT = Path(__file__).parents[3]
Words = NDArray[np.uint64]
DIGEST, SECRETS = b"d" * 32, {user: bytes([user]) * 32 for user in range(1, 60)}


def _own_mask(user: int) -> bytes:
    return masks.MASK.pack(user, user, SECRETS[user], bytes(32))


def _many_masks(user: int) -> bytes:
    """More than a pipe holds."""
    return _own_mask(user) * 200


def _sum_of_many() -> Words:
    """What `_many_masks` of all users add up to."""
    total = np.zeros(CHUNK_WORDS + 1, np.uint64)
    for seed in SECRETS.values():
        prg.add_stream(total, seed)
    return total * np.uint64(200)


def test_processes_share_the_work(started: list) -> None:
    """Each mask is added once, here or elsewhere, though all take from one list."""
    by_thread = Counter()

    def masks_of(user: int) -> bytes:
        by_thread[threading.get_ident()] += 1
        return _many_masks(user)

    total = masks.sum_masks(CHUNK_WORDS + 1, DIGEST, SECRETS, masks_of, 3)
    assert np.array_equal(total, _sum_of_many())
    assert len(by_thread) == 3
    assert sum(by_thread.values()) == len(SECRETS)


def test_a_process_is_started_for_its_worth_of_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "cores", lambda: 64)
    assert masks.processes_for(61_450, 10_000, 0) == 1
    assert masks.processes_for(61_450, 810, 18_000) == 2
    assert masks.processes_for(61_450, 8_100, 250_000) == 23
    assert masks.processes_for(1, 8_100, 250_000) == 8  # keys to agree on are work too
    monkeypatch.setattr(masks, "cores", lambda: 1)
    assert masks.processes_for(10**9, 10**6, 10**6) == 1


@pytest.mark.parametrize("room", [0, 1])
def test_those_that_can_be_started_do(
    room: int, started: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = masks._start

    def limited() -> subprocess.Popen[bytes]:
        if len(started) == room:
            raise BlockingIOError("no process left")
        return start()

    monkeypatch.setattr(masks, "_start", limited)
    total = masks.sum_masks(CHUNK_WORDS + 1, DIGEST, SECRETS, _many_masks, 3)
    assert np.array_equal(total, _sum_of_many())
    assert [other.returncode for other in started] == [0] * room


@pytest.mark.parametrize("fault", [MemoryError, KeyboardInterrupt])
def test_a_failure_here_ends_the_other_processes(
    fault: type[BaseException], started: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(total: Words, seed: bytes) -> None:
        raise fault("at the first mask")

    monkeypatch.setattr(masks, "add_stream", add)
    with pytest.raises(fault, match="at the first mask"):
        masks.sum_masks(8, DIGEST, SECRETS, _many_masks, 3)
    assert [other.returncode for other in started] == [-signal.SIGKILL] * 2


def test_a_process_that_answers_before_it_was_told_all_is_not_heard(started: list, monkeypatch):
    program = "import os; os.close(0); os.write(1, bytes(64))"
    monkeypatch.setattr(masks, "_PROCESS", program)

    def masks_of(user: int) -> bytes:
        started[0].wait(20)
        return _own_mask(user)

    with pytest.raises(ChildProcessError, match="gave 0 and ended with 0"):
        masks.sum_masks(8, DIGEST, SECRETS, masks_of, 2)


def test_a_process_killed_in_the_middle_ends_all(started: list) -> None:
    """No time is lost on masks that nobody will use, and no process stays."""
    asked = []

    def masks_of(user: int) -> bytes:
        asked.append(user)
        if len(asked) == 30:
            started[0].kill()
            started[0].wait(20)
        return _many_masks(user)

    with pytest.raises(ChildProcessError, match="gave 0 and ended with -9; nothing is released"):
        masks.sum_masks(CHUNK_WORDS, DIGEST, SECRETS, masks_of, 3)
    assert len(asked) < len(SECRETS)
    assert None not in [other.returncode for other in started]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_no_secret_is_shown_to_who_lists_processes(started: list) -> None:
    shown = []

    def masks_of(user: int) -> bytes:
        proc = Path(f"/proc/{started[0].pid}")
        for _ in range(500):  # until the child has become the server
            if b"serve()" in (proc / "cmdline").read_bytes():
                break
            time.sleep(0.01)
        shown.append(b"".join((proc / name).read_bytes() for name in ("cmdline", "environ")))
        return _own_mask(user)

    masks.sum_masks(8, DIGEST, SECRETS, masks_of, 2)
    assert all(b"serve()" in each for each in shown)
    for secret in [DIGEST, *SECRETS.values()]:
        assert not any(secret[:8] in each or secret[:8].hex().encode() in each for each in shown)


_SERVER = """
import os, sys
sys.path.append(sys.argv[1])
from train_distributed.secure_sum import masks

start = masks._start

def told():
    other = start()
    print(other.pid, flush=True)
    return other

def masks_of(user):
    if user > 100 and sys.argv[2] == "dies":
        os.kill(os.getpid(), 9)
    return masks.MASK.pack(user, user, bytes(32), bytes(32))

masks._start = told
print(masks.sum_masks(8, bytes(32), range(200), masks_of, 2)[0])
"""


def _server(folder: Path, ending: str) -> subprocess.CompletedProcess[str]:
    """A program without a guard, in another folder, with no variables to find modules by."""
    (folder / "server.py").write_text(_SERVER)
    command = [sys.executable, "-I", "server.py", str(ROOT), ending]
    return subprocess.run(command, cwd=folder, env={}, capture_output=True, text=True, timeout=60)


def test_a_process_finds_its_modules_wherever_the_server_was_started(tmp_path: Path) -> None:
    done = _server(tmp_path, "lives")
    sum_ = np.zeros(8, np.uint64)
    for _ in range(200):
        prg.add_stream(sum_, bytes(32))
    assert done.stderr == ""
    assert done.stdout.split()[1:] == [str(sum_[0])]


def test_a_process_ends_with_its_server(tmp_path: Path) -> None:
    done = _server(tmp_path, "dies")
    assert done.returncode == -signal.SIGKILL
    status, until = Path(f"/proc/{done.stdout.split()[0]}/stat"), time.monotonic() + 10
    while status.exists() and ") Z" not in status.read_text():
        assert time.monotonic() < until
        time.sleep(0.02)
