"""The adders of `load_shares.py`: processes that are killed, start again, and tell what it took."""

import argparse
import hashlib
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from train_distributed.flower.documents.certificates import write_certificates
from train_distributed.flower.documents.party import write_party
from train_distributed.flower.documents.window_file import ROLL, WINDOW, WindowFile
from train_distributed.flower.transport.processes import free_port
from train_distributed.secure_sum.keys import KEY_BYTES
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.window import Window


@dataclass
class Process:
    """One adder, over all its lives."""

    command: list[str]
    log: Path
    address: tuple[str, int]
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
                raise RuntimeError(f"an adder must run, ended: {self.log.read_text()[-500:]}")
            time.sleep(0.01)
        self.restarts.append(time.monotonic() - before)

    def kill(self) -> None:
        """SIGKILL, wherever it is; notes what this life cost."""
        assert self.running is not None
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        (peak,) = [int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line]
        self.peak_kb = max(self.peak_kb, peak)
        self.running.kill()
        _, _, usage = os.wait4(self.running.pid, 0)
        self.running.returncode = -9
        self.cpu += usage.ru_utime + usage.ru_stime
        self.kills += 1


def set_up(
    folder: Path, options: argparse.Namespace, roll: bytes
) -> tuple[WindowFile, list[Process]]:
    """Keys, roll, window; adders that run."""
    names = range(FIRST_SERVER, FIRST_SERVER + options.adders)
    keys = {name: write_party(folder / f"adder{name - FIRST_SERVER}") for name in names}
    users = len(roll) // KEY_BYTES
    window = Window(
        nonce=secrets.token_bytes(32),
        dimension=(1 + options.components) * options.classes,
        bits=options.bits,
        minimum=users // 2,
        enrolled=users,
        roll=hashlib.sha256(roll).digest(),
        servers={name: pair.public for name, pair in keys.items()},
        opens=int(time.time()) - 60,
        closes=int(time.time()) + 10**6,
    )
    file = WindowFile(window=window, addresses={name: ("127.0.0.1", free_port()) for name in names})
    file.save(folder / WINDOW)
    (folder / ROLL).write_bytes(roll)
    if options.tls:
        (folder / "tls").mkdir()
        write_certificates(folder / "tls", ["127.0.0.1"])
    processes = []
    for name in names:
        own = folder / f"adder{name - FIRST_SERVER}"
        words = f"federation aggregator --folder {own} --window {folder}"
        words += f" --processes {options.processes}"
        words += f" --tls {folder / 'tls'}" if options.tls else ""
        command = [sys.executable, "-m", "train_distributed", *words.split()]
        processes.append(Process(command, folder / f"{own.name}.log", file.addresses[name]))
    return file, processes


def state_bytes(folder: Path, adders: int) -> list[int]:
    """Of each adder's state on its disk."""
    states = [folder.glob(f"adder{j}/state/*/*") for j in range(adders)]
    return [sum(file.stat().st_size for file in state) for state in states]
