"""Aggregators of a window in processes of their own, for benchmarks: killed, and started again."""

import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.train_distributed.secure_sum.window.conftest import make_roll
from train_distributed.federation.documents.certificates import AGREED, SERVER, write_certificate
from train_distributed.federation.documents.place import ROLL
from train_distributed.federation.documents.private_keys import write_party
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.window import HELPER, LEADER, Window


@dataclass
class Process:
    """One aggregator, over all its lives."""

    command: list[str]
    log: Path
    cpu: float = 0.0
    peak_kb: int = 0
    kills: int = 0
    restarts: list[float] = field(default_factory=list)  # seconds until it listens
    running: "subprocess.Popen[bytes] | None" = None

    def start(self) -> None:
        before = time.monotonic()
        with self.log.open("ab") as log:
            environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
            self.running = subprocess.Popen(self.command, stdout=log, stderr=log, env=environment)
        while self.log.read_bytes().count(b"listening") <= self.kills:
            if self.running.poll() is not None:
                raise RuntimeError(f"an aggregator must run, ended: {self.log.read_text()[-500:]}")
            time.sleep(0.01)
        self.restarts.append(time.monotonic() - before)

    def kill(self) -> None:
        """SIGKILL, wherever it is; notes what this life cost."""
        assert self.running is not None
        self.peak_kb = max(self.peak_kb, memory_kb(self.running.pid, "VmHWM"))
        self.running.kill()
        _, _, usage = os.wait4(self.running.pid, 0)
        self.running.returncode = -9
        self.cpu += usage.ru_utime + usage.ru_stime
        self.kills += 1

    @property
    def resident_kb(self) -> int:
        assert self.running is not None
        return memory_kb(self.running.pid, "VmRSS")


def memory_kb(pid: int, what: str) -> int:
    """A line of the kernel's status of a process; an error when it has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (found,) = (int(line.split()[1]) for line in lines if line.startswith(what))
    return found


TLS = "tls"
FOLDERS = {LEADER: "aggregator0", HELPER: "aggregator1"}


def make_window(
    folder: Path, users: list[PrivateKeys], dimension: int, norm_bound: int, std: float = 100.0
) -> WindowFile:
    """A window of these users in a folder, and the folders of its aggregators."""
    keys = {number: write_party(folder / name) for number, name in FOLDERS.items()}
    roll = make_roll([own.public.verifying for own in users], [1] * len(users))
    now, servers = int(time.time()), {number: pair.public for number, pair in keys.items()}
    given: dict[str, Any] = {"nonce": secrets.token_bytes(32), "dimension": dimension}
    given |= {"minimum": max(1, len(users) // 2), "sizes": {1: (len(users), norm_bound)}}
    given |= {"roll": roll.root, "servers": servers, "noise_std": std}
    window = Window(opens=now - 60, closes=now + 10**6, **given)
    file = WindowFile.of(window, {number: ("127.0.0.1", free_port()) for number in FOLDERS})
    file.save(folder / WINDOW)
    (folder / ROLL).write_bytes(roll.lines.tobytes())
    for name in FOLDERS.values():
        write_certificate(folder / name / TLS, ["127.0.0.1"])
    made = [(folder / name / TLS / SERVER).read_bytes() for name in FOLDERS.values()]
    (folder / AGREED).write_bytes(b"".join(made))
    return file


def commands(
    folder: Path, *, store: str | None = None, workers: int = 1, more: str = ""
) -> list[Process]:
    """The aggregators of a window that `make_window` has made: so many workers of each."""
    processes = []
    for name in FOLDERS.values():
        words = f"federation aggregator --folder {folder / name} --window {folder} {more}"
        words += f" --store {store}" if store else ""
        command = [sys.executable, "-m", "train_distributed", *words.split()]
        processes += [Process(command, folder / f"{name}-{i}.log") for i in range(workers)]
    return processes
