"""A result appears whole or not at all, and one command at a time writes a directory."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.cli import output
from pretrain.cli.output import default_directory, new_directory, reserved

BY_ANOTHER = "must be written by one command at a time"
HOLD = """
import sys
from pathlib import Path
from pretrain.cli.output import new_directory

with new_directory(Path(sys.argv[1]), overwrite=True) as partial:
    (partial / "model").write_text("theirs")
    print("ready", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that is writing `out`, and ends when its input does."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def write(out: Path, text: str, *, overwrite: bool = False) -> None:
    with new_directory(out, overwrite=overwrite) as partial:
        (partial / "model").write_text(text)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_another_writes_is_refused_before_the_work(holder, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("here").mkdir()
    Path("link").symlink_to(".")
    spellings = [Path(each) for each in ("out", "./out", "here/../out", "link/out")]
    for out in spellings:
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match=BY_ANOTHER):
                write(out, "mine", overwrite=overwrite)
    holder.communicate("")
    assert (tmp_path / "out" / "model").read_text() == "theirs"
    for out in spellings:
        with pytest.raises(FileExistsError, match="must not exist"):
            write(out, "mine")
    assert names(tmp_path) == ["here", "link", "out"]


def test_a_claim_ends_with_a_process_that_is_killed(holder, tmp_path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert ".out.claim" in names(tmp_path)
    write(tmp_path / "out", "mine")
    assert (tmp_path / "out" / "model").read_text() == "mine"
    assert ".out.claim" not in names(tmp_path)


def test_a_claim_is_one_thread_s_and_ends_with_an_error(tmp_path) -> None:
    stopped = pytest.raises(KeyError)
    with stopped, new_directory(tmp_path / "out"):
        with pytest.raises(FileExistsError, match=BY_ANOTHER):
            write(tmp_path / "out", "nested")
        raise KeyError
    write(tmp_path / "out", "after")
    assert names(tmp_path) == ["out"]


def test_of_many_that_begin_at_once_one_writes(tmp_path) -> None:
    """Whichever way they meet: the others fail before their work, or after the winner's end."""

    def compete(start: threading.Barrier, out: Path) -> bool:
        start.wait()
        try:
            with new_directory(out):
                return True
        except FileExistsError:
            return False

    with ThreadPoolExecutor(6) as pool:
        for place in range(20):
            start, out = threading.Barrier(6), tmp_path / f"out{place}"
            assert list(pool.map(compete, [start] * 6, [out] * 6)).count(True) == 1
    assert names(tmp_path) == sorted(f"out{place}" for place in range(20))


def _killed_at(out: Path, step: int) -> None:
    """Replaces `out`, killed before the given rename or synchronisation of a directory."""
    calls = []

    def counted(real):
        def call(*args, **more):
            calls.append(real)
            if len(calls) == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **more)

        return call

    Path.rename = counted(Path.rename)
    output.sync_directory = counted(output.sync_directory)
    write(out, "new", overwrite=True)


@pytest.mark.parametrize(("step", "left"), list(enumerate(["old", "old", "new", "new", "new"], 1)))
def test_a_replacement_killed_anywhere_loses_no_model(tmp_path, step: int, left: str) -> None:
    """Until the first rename, the second step, the old one stays; then the new one does."""
    out = tmp_path / "out"
    write(out, "old")
    process = multiprocessing.get_context("spawn").Process(target=_killed_at, args=(out, step))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with pytest.raises(FileExistsError, match="must not exist"):
        write(out, "never")
    assert (out / "model").read_text() == left
    write(out, "third", overwrite=True)
    assert (out / "model").read_text() == "third"
    assert [name for name in names(tmp_path) if not name.endswith(".partial")] == ["out"]


@pytest.mark.parametrize(
    ("name", "message"),
    [(".", "must not hold the working directory"), ("..", "must not hold"), ("file", "be a file")],
)
def test_what_must_not_be_replaced(tmp_path, monkeypatch, name: str, message: str) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path / "inner")
    with pytest.raises(FileExistsError, match=message):
        write(Path(name), "new", overwrite=True)
    assert names(tmp_path / "inner") == ["file"]


def test_what_somebody_else_made_meanwhile_is_kept_and_so_is_the_result(tmp_path: Path) -> None:
    out, kept = tmp_path / "out", tmp_path / f"out.{os.getpid()}"
    refused = pytest.raises(FileExistsError, match=f"the result is in {kept}")
    with refused, new_directory(out) as partial:
        (partial / "model").write_text("mine")
        out.mkdir()
        (out / "other").write_text("theirs")
    assert (out / "other").read_text() == "theirs"
    assert (kept / "model").read_text() == "mine"


def test_a_link_is_written_through(tmp_path) -> None:
    write(tmp_path / "real", "old")
    (tmp_path / "out").symlink_to("real")
    (tmp_path / "dangling").symlink_to("none")
    write(tmp_path / "out", "new", overwrite=True)
    write(tmp_path / "dangling", "new")
    assert (tmp_path / "real" / "model").read_text() == "new"
    assert (tmp_path / "none" / "model").read_text() == "new"
    assert (tmp_path / "out").is_symlink()


def test_a_default_directory_is_not_one_that_is_being_written(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = SimpleNamespace(now=lambda tz: datetime(2026, 1, 1, tzinfo=tz))
    monkeypatch.setattr(output, "datetime", stopped)
    with new_directory(default_directory("run")):
        write(default_directory("run"), "second")
    assert names(tmp_path / "runs") == ["20260101T000000-run", "20260101T000000-run-2"]


def test_a_place_without_rights_or_space_is_found_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for block in (new_directory(tmp_path / "file" / "out"), reserved(tmp_path, 1 << 60)):
        worked = False
        with pytest.raises(OSError), block:  # noqa: PT011
            worked = True
        assert not worked
    with reserved(tmp_path, 1 << 20):
        assert (tmp_path / ".reserved").stat().st_size == 1 << 20
    assert names(tmp_path) == ["file"]
