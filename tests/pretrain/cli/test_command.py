"""What every command does before and while it runs: threads, signals, caches, its own line."""

import os
import pwd
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pretrain import surroundings
from pretrain.cli.command import STOPS, after, held, listen, run_command
from pretrain.cli.provenance import provenance

ROOT = Path(__file__).parents[3]
NAMES = ("HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR")
ROOMS = {  # pretrain and embed start as train_distributed does
    "heads": "fit --data missing --out missing --num-classes 2 --l2-reg 1 --clip-norm 1",
    "train_distributed": "predict --model missing --embeddings missing",
}


@pytest.mark.parametrize(
    ("given", "kept"),
    [({}, "3000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "ACTIVE"}, None)],
)
def test_threads_soon_sleep_while_they_wait_unless_told(given, kept, monkeypatch) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")  # is set back afterwards
        del os.environ[name]
    os.environ.update(given)
    found = []
    look: Any = SimpleNamespace(run=lambda: found.append(os.environ.get("GOMP_SPINCOUNT")))
    assert run_command(lambda: look) == 0
    assert found == [kept]


@pytest.mark.skipif(sys.platform != "linux", reason="another OpenMP elsewhere")
@pytest.mark.parametrize("room", ROOMS)
def test_openmp_is_told_before_it_is_loaded(room: str, tmp_path) -> None:
    """It prints what it has read: in every room, with the torch that a command loads."""
    left = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    done = subprocess.run(
        [sys.executable, "-m", room, *ROOMS[room].split()],
        cwd=tmp_path, env=left | {"OMP_DISPLAY_ENV": "VERBOSE"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 2
    told = re.findall(r"GOMP_SPINCOUNT = '(\w+)'", done.stderr)
    assert told, done.stderr
    assert set(told) == {"3000"}


@pytest.mark.parametrize("typed", ["run --help", "account --epsilon 1 --delta 1e-5"])
def test_an_output_may_be_left_unread(typed: str) -> None:
    """As by `| head -2`: without a word of what became of the rest."""
    command = [sys.executable, "-u", "-m", "train_distributed", *typed.split()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pipesize=4096
    ) as helped:
        assert helped.stdout is not None
        helped.stdout.readline()
        helped.stdout.close()
        assert helped.stderr is not None
        assert helped.stderr.read() == b""
    assert helped.returncode == 0


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of a program in a terminal, whatever the tests were started by; then what was there."""
    before = {stop: signal.getsignal(stop) for stop in STOPS}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    for stop, handler in before.items():
        signal.signal(stop, handler)


def interrupt(error: Exception | None = None) -> None:
    with held():
        os.kill(os.getpid(), signal.SIGINT)
        if error is not None:
            raise error


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("stop", STOPS)
def test_a_signal_waits_until_the_block_ends(stop: signal.Signals) -> None:
    listen()
    before, done = [signal.getsignal(each) for each in STOPS], []

    def stopped() -> None:
        with after("the file was written"), held() as interrupted:
            done.append(interrupted())
            os.kill(os.getpid(), stop)
            os.kill(os.getpid(), stop)
            done.append(interrupted())

    with pytest.raises(KeyboardInterrupt, match="the file was written"):
        stopped()
    assert done == [False, True]
    assert [signal.getsignal(each) for each in STOPS] == before
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), stop)


@pytest.mark.usefixtures("handlers")
def test_blocks_in_blocks_and_in_threads_and_errors_of_a_block() -> None:
    with held() as outer:
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        assert not outer()

    def other() -> bool:
        with held() as interrupted:
            return interrupted()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(other).result() is False
    with pytest.raises(ValueError, match="wrong"):
        interrupt(ValueError("wrong"))


@pytest.mark.usefixtures("handlers")
def test_what_is_ignored_or_kills_stays_so() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup has it
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with held():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    listen()
    os.kill(os.getpid(), signal.SIGHUP)
    assert callable(signal.getsignal(signal.SIGTERM))


CLOSED = """
import os, signal, sys
from pretrain.cli.command import run_command
class Command:
    def run(self):
        os.kill(os.getpid(), signal.SIGHUP)
        print("stayed")
raise SystemExit(run_command(Command))
"""


@pytest.mark.parametrize("ignored", [False, True])
def test_a_terminal_that_is_closed_ends_a_command_unless_it_was_told_to_stay(ignored: bool) -> None:
    action = signal.SIG_IGN if ignored else signal.SIG_DFL
    done = subprocess.run(
        [sys.executable, "-c", CLOSED], capture_output=True, text=True, cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, action),
    )  # fmt: skip
    said = (0, "stayed\n", "") if ignored else (130, "", "interrupted; nothing was written\n")
    assert (done.returncode, done.stdout, done.stderr) == said


@pytest.mark.parametrize(
    ("module", "program", "here", "told"),
    [
        ("heads.__main__", "heads/__main__.py", ".", "python -m heads"),
        ("tests.bench", "site-packages/tests/bench.py", ".", "python -m tests.bench"),
        (None, "bin/blind-averaging", ".", "blind-averaging"),
        (None, "tests/bench.py", ".", "python tests/bench.py"),
        (None, "elsewhere/bench.py", "here", "python bench.py"),
    ],
)
def test_a_command_is_told_as_typed(monkeypatch, tmp_path, module, program, here, told) -> None:
    """Without its place."""
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    public = ("--public", str(tmp_path / "public"), "../p")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / program), "run", *public])
    (tmp_path / here).mkdir(exist_ok=True)
    monkeypatch.chdir(tmp_path / here)
    assert provenance()["command"] == f"{told} run --public public p"


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """A user id that no file knows, without a home."""

    def unknown(number: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
    return monkeypatch


def found() -> dict[str, str | None]:
    surroundings.provide_caches()
    return {name: os.environ.get(name) for name in NAMES}


def test_without_a_home_caches_are_in_a_folder_that_is_said_once(nobody, tmp_path, capsys) -> None:
    made = found()
    (place,) = map(str, tmp_path.iterdir())
    assert made == {"HOME": place, "XDG_CACHE_HOME": place, "MPLCONFIGDIR": f"{place}/matplotlib"}
    assert found() == made
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"caches are in {place} until this ends")
    assert os.stat(place).st_mode & 0o777 == 0o700  # nobody else's network is ever loaded
    for name in ("HOME", "MPLCONFIGDIR"):
        nobody.delenv(name)
    nobody.setenv("XDG_CACHE_HOME", "/named")  # is taken without a word
    assert list(found().values()) == ["/named", "/named", "/named/matplotlib"]
    assert not capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_a_home_holds_caches_where_it_can_be_written_or_has_them(nobody, tmp_path) -> None:
    nobody.setenv("HOME", str(tmp_path))
    left = {"HOME": str(tmp_path), "XDG_CACHE_HOME": None, "MPLCONFIGDIR": None}
    assert found() == left
    nobody.setattr(os, "access", lambda path, mode: False)
    (tmp_path / ".cache").mkdir()
    assert found() == left
    (tmp_path / "shut").mkdir()
    (tmp_path / "file").write_text("")
    nobody.setenv("MPLCONFIGDIR", "/own")
    for home in ("gone", "file", "shut"):
        nobody.setenv("XDG_CACHE_HOME", "")
        nobody.delenv("XDG_CACHE_HOME")
        nobody.setenv("HOME", str(tmp_path / home))
        made = found()
        place = str(made["XDG_CACHE_HOME"])
        assert Path(place).parent == tmp_path
        assert made["MPLCONFIGDIR"] == "/own"
        assert made["HOME"] == (str(tmp_path / home) if home == "shut" else place)
    for name in NAMES:
        nobody.delenv(name)
    nobody.setattr("tempfile.tempdir", "/nowhere")
    assert found() == dict.fromkeys(NAMES)


PROGRAM = """
import os, subprocess, sys
import pretrain
import huggingface_hub.constants
from embed.engines import networks
print(networks().parent.parent, huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY)
child = [sys.executable, "-c", "import os, heads, embed; print(os.environ['XDG_CACHE_HOME'])"]
subprocess.run(child, check=True)
print([os.environ[name] for name in ("DO_NOT_TRACK", "ORT_DISABLE_TELEMETRY")])
"""


def test_children_share_the_place_and_it_is_gone_afterwards(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "ORT_DISABLE_TELEMETRY": "0"}
    environment |= {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    (said,) = done.stderr.splitlines()
    child, mine, switches = done.stdout.splitlines()  # the child's is written first
    assert mine == f"{child} True"
    assert child in said
    assert switches == "['1', '1']"
    assert not list(tmp_path.iterdir())
