"""`shares` as a service under load: real adders, killed again and again; the sum must be exact.

    python tests/benchmarks/load_shares.py
    python tests/benchmarks/load_shares.py --reports 25000 50000 100000 --kills 30 \
        --held 1000000 --write results/secure_sum/service.json
    python tests/benchmarks/load_shares.py --reports 5000 --line-users 1 --tls --kills 0

Every adder is `blind-averaging federation adder` in a process of its own; clients are processes
that make the reports of class sums of one row, (1 + q) K numbers with noise, and send them. One in
a hundred is sent once more, one in a thousand by a user that made a second report (refused), one in
two hundred reaches the adders of seeds only (left out). Adders are killed (SIGKILL) at random
moments all through, and all of them between two openings.

Seconds of CPU: of the adders with all their restarts; of the clients making reports, apart from
sending them. What m reports cost is fitted as a + b m over the runs without kills. With `--held`,
adders are started that hold so many reports already, written to their disks as they write them,
and open them: the time to start, to open, and the memory of that many are measured, not fitted.
"""

import argparse
import hashlib
import json
import os
import platform
import random
import secrets
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import cryptography
import numpy as np
from numpy.typing import NDArray

from pretrain.cli.output import new_file
from train_distributed.flower.adder_client import Adders
from train_distributed.flower.documents.certificates import CA, write_certificates
from train_distributed.flower.documents.party import read_private, write_party
from train_distributed.flower.documents.state import party_state
from train_distributed.flower.documents.window_file import ROLL, WINDOW, WindowFile
from train_distributed.flower.transport.processes import free_port
from train_distributed.secure_sum.holdings import Holdings
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys
from train_distributed.secure_sum.reports import Part, make_report, message_bytes
from train_distributed.secure_sum.session import FIRST_SERVER
from train_distributed.secure_sum.window import Window

GRID, NOISE = 2.0**12, 34.0  # steps in the length of a row, and of one user's noise
AGAIN, SECOND, HALF_WAY = 100, 1000, 200  # one user in so many
progress: "Synchronized[int] | None" = None  # of a client process


def keys_of(user: int) -> PrivateKeys:
    return PrivateKeys(hashlib.sha256(b"load test user %d" % user).digest(), bytes(32))


def vector_of(user: int, components: int, classes: int) -> NDArray[np.uint64]:
    """Class sums of one row, and noise; the same whenever it is asked for."""
    rng = np.random.default_rng(user)
    sums = np.rint(rng.normal(0, NOISE, (1 + components, classes)))
    row = rng.normal(0, 1, 1 + components)
    sums[:, rng.integers(classes)] += np.trunc(GRID * row / np.linalg.norm(row))
    return sums.ravel().astype(np.int64).view(np.uint64)


@dataclass
class Sent:
    """What a client process did."""

    total: NDArray[np.uint64]
    users: list[int] = field(default_factory=list)  # acknowledged by all
    making: float = 0.0  # CPU seconds
    sending: float = 0.0
    refused: int = 0  # second reports
    left_out: int = 0


def client(folder: Path, users: range, shape: tuple[int, int], line_users: int) -> Sent:
    """Makes and sends the reports of some users, of so many on one line to each adder."""
    file = WindowFile.load(folder / WINDOW)
    sent, tls = Sent(np.zeros(file.window.dimension, np.uint64)), authorities(folder)
    for start in range(0, len(users), line_users):
        some = users[start : start + line_users]
        with Adders(file.window, file.addresses, tls, patience=120.0) as adders:
            _chunk(adders, file.window, some, shape, sent)
        assert progress is not None
        with progress.get_lock():
            progress.value += len(some)
    return sent


def authorities(folder: Path) -> ssl.SSLContext | None:
    """Where the adders have TLS, what their certificate is checked with."""
    ca = folder / "tls" / CA
    return ssl.create_default_context(cafile=str(ca)) if ca.exists() else None


def _chunk(
    adders: Adders, window: Window, users: range, shape: tuple[int, int], sent: Sent
) -> None:
    before = time.process_time()
    vectors = {user: vector_of(user, *shape) for user in users}
    reports = {u: make_report(window, u, keys_of(u), vector) for u, vector in vectors.items()}
    others = {u: make_report(window, u, keys_of(u), vectors[u]) for u in users if u % SECOND == 3}
    sent.making += time.process_time() - before
    before = time.process_time()
    some = {u: reports.pop(u) for u in users if u % HALF_WAY == 7}
    seeds, _ = adders.seeds(some)
    assert not seeds, seeds
    again = {u: report for u, report in reports.items() if u % AGAIN == 5}
    for each in (reports, again):
        refused = adders.report(each)
        assert not refused, refused
    refused = adders.report(others)
    assert refused.keys() == others.keys(), refused
    sent.sending += time.process_time() - before
    sent.refused += len(refused)
    sent.left_out += len(some)
    for user in reports:
        sent.users.append(user)
        sent.total += vectors[user]


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
        words = f"federation adder --folder {own} --window {folder}"
        words += f" --processes {options.processes}"
        words += f" --tls {folder / 'tls'}" if options.tls else ""
        command = [sys.executable, "-m", "train_distributed", *words.split()]
        processes.append(Process(command, folder / f"{own.name}.log", file.addresses[name]))
    return file, processes


def measure(options: argparse.Namespace, users: int, kills: int) -> dict[str, Any]:
    """One window."""
    folder = Path(tempfile.mkdtemp(prefix="load-shares-", dir=options.folder))
    roll = b"".join(keys_of(user).public.verifying for user in range(users))
    file, processes = set_up(folder, options, roll)
    try:
        for process in processes:
            process.start()
        return _measured(options, folder, file, processes, users, kills)
    finally:
        for process in processes:
            if process.running is not None and process.running.returncode is None:
                process.running.kill()
                process.running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _measured(
    options: argparse.Namespace,
    folder: Path,
    file: WindowFile,
    processes: list[Process],
    users: int,
    kills: int,
) -> dict[str, Any]:
    rng, context = random.Random(users), get_context("fork")
    counter = context.Value("q", 0)
    start, loads = time.monotonic(), [os.getloadavg()[0]]
    with ProcessPoolExecutor(
        options.clients, context, initializer=_share, initargs=(counter,)
    ) as pool:
        slices = [range(part, users, options.clients) for part in range(options.clients)]
        shape = (options.components, options.classes)
        work = [pool.submit(client, folder, each, shape, options.line_users) for each in slices]
        moments = sorted(rng.randrange(users) for _ in range(kills))
        while moments and not any(each.done() and each.exception() for each in work):
            if counter.value >= moments[0] or all(each.done() for each in work):
                del moments[0]
                victim = rng.choice(processes)
                victim.kill()
                victim.start()
            time.sleep(rng.random() / 20)
        sent = [each.result() for each in work]
    taken = time.monotonic() - start
    loads.append(os.getloadavg()[0])
    operator = read_private(folder / "adder0")
    with Adders(file.window, file.addresses, authorities(folder)) as adders:
        told = adders.status(operator)
        start = time.monotonic()
        opened = adders.open(operator)
        opening = time.monotonic() - start
        for process in processes:  # after the opening, and from their disks alone
            process.kill()
            process.start()
        again = adders.open(operator)
    for process in processes:
        process.kill()
    acknowledged = sorted(user for each in sent for user in each.users)
    expected = np.stack([each.total for each in sent]).sum(0, np.uint64)
    exact = np.array_equal(opened.total, expected) and sorted(opened.users) == acknowledged
    exact = exact and np.array_equal(again.total, expected) and again.users == opened.users
    if not exact:
        raise RuntimeError(f"the sum of {users} reports is wrong, adders say {told}")
    return {
        "enrolled": users,
        "reports_in_the_sum": len(acknowledged),
        "left_out": sum(each.left_out for each in sent),
        "second_reports_refused": sum(each.refused for each in sent),
        "exact": True,
        "kills": kills,
        "seconds": round(taken, 2),
        "seconds_opening": round(opening, 3),
        "clients_cpu_seconds_making": round(sum(each.making for each in sent), 2),
        "clients_cpu_seconds_sending": round(sum(each.sending for each in sent), 2),
        "adders_cpu_seconds": [round(p.cpu, 2) for p in processes],
        "adders_peak_mb": [round(p.peak_kb / 1024, 1) for p in processes],
        "adders_lives": [p.kills for p in processes],
        "restart_seconds_mean": round(
            float(np.mean([s for p in processes for s in p.restarts])), 3
        ),
        "restart_seconds_last": [round(p.restarts[-1], 3) for p in processes],
        "state_bytes": state_bytes(folder, len(processes)),
        "load_average": [round(load, 2) for load in loads],
    }


def state_bytes(folder: Path, adders: int) -> list[int]:
    """Of each adder's state on its disk."""
    states = [folder.glob(f"adder{j}/state/*/*") for j in range(adders)]
    return [sum(file.stat().st_size for file in state) for state in states]


def held(options: argparse.Namespace, users: int) -> dict[str, Any]:
    """What adders take that are started with so many reports on their disks, and open them."""
    folder = Path(tempfile.mkdtemp(prefix="load-shares-", dir=options.folder))
    file, processes = set_up(folder, options, os.urandom(KEY_BYTES * users))
    enrolled, found = file.enrolled(folder), []
    try:
        for adder, process in zip(sorted(file.window.servers), processes, strict=True):
            own = folder / f"adder{adder - FIRST_SERVER}"
            number = f"adder{adder - FIRST_SERVER}"
            state = party_state(file.window.digest, number, own / "state")
            holdings = Holdings(state, enrolled, adder)
            size = 32 if adder < file.window.last else 0  # of a seed
            for start in range(0, users, 10_000):
                some = range(start, min(users, start + 10_000))
                parts = [Part(u, os.urandom(16), os.urandom(32), os.urandom(size)) for u in some]
                holdings.add(parts, holdings.total * 0, time.time())
            holdings.close_file()
            process.start()
        with Adders(file.window, file.addresses, authorities(folder)) as adders:
            start = time.monotonic()
            opened = adders.open(read_private(folder / "adder0"))
            opening = time.monotonic() - start
        assert len(opened.users) == users
        sizes = state_bytes(folder, len(processes))
        for process in processes:
            process.kill()
            found.append((process.restarts[0], process.cpu, process.peak_kb / 1024))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "reports": users,
        "start_seconds": [round(start, 2) for start, _, _ in found],
        "cpu_seconds_of_start_and_opening": [round(cpu, 2) for _, cpu, _ in found],
        "peak_mb": [round(peak, 1) for _, _, peak in found],
        "seconds_opening": round(opening, 2),
        "state_bytes": sizes,
    }


def _share(counter: "Synchronized[int]") -> None:
    global progress
    progress = counter


def extrapolated(runs: list[dict[str, Any]], million: int = 10**6) -> dict[str, Any]:
    """a + b m by least squares over runs without kills; what a million would take."""
    sizes = np.array([run["enrolled"] for run in runs])
    found = {}
    for name in ("adders_cpu_seconds", "adders_peak_mb", "state_bytes"):
        for adder in range(len(runs[0][name])):
            slope, fixed = np.polyfit(sizes, [run[name][adder] for run in runs], 1)
            found[f"{name}_{adder}"] = {
                "fixed": round(float(fixed), 3),
                "per_report": float(f"{slope:.4g}"),
                "of_a_million": round(float(fixed + slope * million), 1),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--reports", type=int, nargs="+", default=[100_000])
    parser.add_argument("--adders", type=int, default=3)
    parser.add_argument("--components", type=int, default=128)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--bits", type=int, default=32, choices=(32, 64))
    parser.add_argument("--kills", type=int, default=30, help="of adders, in the largest run")
    parser.add_argument("--clients", type=int, default=2, help="processes that send")
    parser.add_argument("--processes", type=int, default=1, help="of each adder")
    parser.add_argument("--line-users", type=int, default=128, help="that share a connection")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--held", type=int, help="start adders that hold so many reports")
    parser.add_argument("--folder", type=Path, help="for the adders' disks; a temporary one")
    parser.add_argument("--write", type=Path, help="JSON file for the table")
    options = parser.parse_args()
    largest = max(options.reports)
    runs = []
    sizes = [(users, 0) for users in sorted(options.reports)]
    for users, kills in sizes + [(largest, options.kills)] * (options.kills > 0):
        runs.append(measure(options, users, kills))
        print(json.dumps(runs[-1]), flush=True)
    names = range(FIRST_SERVER, FIRST_SERVER + options.adders)
    window = Window(
        nonce=bytes(32),
        dimension=(1 + options.components) * options.classes,
        bits=options.bits,
        minimum=1,
        enrolled=1,
        roll=bytes(32),
        servers={name: PrivateKeys.generate().public for name in names},
        opens=0,
        closes=1,
    )
    bytes_sent = [message_bytes(window, name) for name in names]
    bytes_sent[-1] += 32 * (options.adders - 1)
    table: dict[str, Any] = {
        "command": "python tests/benchmarks/load_shares.py " + " ".join(sys.argv[1:]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, python "
        f"{platform.python_version()}, numpy {np.__version__}, "
        f"cryptography {cryptography.__version__}",
        "dimension": window.dimension,
        "bits": options.bits,
        "adders": options.adders,
        "processes_per_adder": options.processes,
        "report_bytes": bytes_sent,
        "runs": runs,
    }
    if len(options.reports) > 1:
        table["fit"] = extrapolated([run for run in runs if not run["kills"]])
    if options.held:
        table["held"] = held(options, options.held)
        print(json.dumps(table["held"]), flush=True)
    print(json.dumps(table.get("fit", {}), indent=1))
    if options.write:
        with new_file(options.write) as partial:
            partial.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
