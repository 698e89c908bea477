"""A window under load: real aggregators, killed again and again; the sum must be exact but noise.

    python tests/benchmarks/bench_reports.py --reports 10000 --kills 30
    python tests/benchmarks/bench_reports.py --reports 100000 --dimension 64 --store postgresql \
        --workers 4 --kills 30 --database-kills 5

Aggregators are `blind-averaging federation aggregator` in processes of their own, each with SQLite,
or as several workers each on one PostgreSQL, which is made for it from the distribution's packages.
All reports are made first, by processes (`--folder DIR --only-make` keeps them for another call);
then threads send them, one in a hundred twice. Workers and the database are killed (SIGKILL,
immediate stop) at random moments all through, the database for up to five seconds, and every
worker between two openings. The noise of the sum is compared with what both add: its standard
deviation within a tenth, at dimension 64 within three tenths. Exit code 1 where the sum is of other
users, the two openings differ, or fewer were killed than asked for.
"""

import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from aggregators import Process, commands, make_window
from postgresql import Server, running

from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import make_report, report_bytes

BOUND, SENDERS, AGAIN, LOOK_SECONDS, PATIENCE = 2**20, 8, 100, 0.5, 4 * 3600.0
REPORTS, MADE = "reports.bin", "made.json"


def vector_of(user: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(user).integers(-5000, 5000, dimension)


def make_part(folder: Path, first: int, keys: list[PrivateKeys]) -> float:
    """Writes the reports of some users where they belong; CPU seconds."""
    window, start = WindowFile.load(folder / WINDOW).window, time.process_time()
    size = report_bytes(window.dimension, BOUND)
    with (folder / REPORTS).open("r+b") as file:
        file.seek(first * size)
        for user, own in enumerate(keys, first):
            vector = vector_of(user, window.dimension)
            file.write(make_report(window, user, own, vector, BOUND))
    return time.process_time() - start


def make(folder: Path, reports: int, dimension: int) -> None:
    """A window, and the reports of all its users."""
    start, keys = time.monotonic(), [PrivateKeys.generate() for _ in range(reports)]
    make_window(folder, keys, dimension, BOUND)
    (folder / REPORTS).touch()
    parts = range(0, reports, 500)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        work = [pool.submit(make_part, folder, at, keys[at : at + 500]) for at in parts]
        cpu = sum(each.result() for each in work)
    made = {"seconds_of_making": time.monotonic() - start, "cpu_seconds_of_making": cpu}
    (folder / MADE).write_text(json.dumps({name: round(of, 1) for name, of in made.items()}))


class Load:
    """All users of a window, and whoever kills what they talk to."""

    def __init__(self, folder: Path, processes: list[Process], server: Server | None) -> None:
        self._file, self._folder = WindowFile.load(folder / WINDOW), folder
        self._processes, self._server = processes, server
        self._operator = read_private(folder / "aggregator0")
        self.acknowledged, self._ended = 0, threading.Event()

    def _lines(self, patience: float = PATIENCE) -> Aggregators:
        tls = trust(self._folder / AGREED)
        return Aggregators(self._file.window, self._file.addresses, tls, patience)

    def send(self, users: range) -> None:
        """Sends the reports of some users, over one connection."""
        window = self._file.window
        size = report_bytes(window.dimension, BOUND)
        with (
            self._lines() as aggregators,
            (self._folder / REPORTS).open("rb") as file,
        ):
            for user in users:
                file.seek(user * size)
                report = file.read(size)
                for _ in range(2 if user % AGAIN == 0 else 1):
                    aggregators.report(user, report)
                self.acknowledged += 1

    def kill(self, workers: int, databases: int) -> None:
        """So many kills, at random points of the work; whoever was killed is started again."""
        victims: list[Process | Server] = random.choices(self._processes, k=workers)
        if self._server is not None:
            victims += [self._server] * databases
        random.shuffle(victims)
        reports = self._file.window.enrolled
        points = sorted(random.uniform(0, 0.95) for _ in victims)
        for point, victim in zip(points, victims, strict=True):
            while self._progress() < point * reports:
                if self._ended.wait(LOOK_SECONDS):
                    return
            victim.kill()
            if isinstance(victim, Server):
                time.sleep(random.uniform(0, 5))
            victim.start()

    def _progress(self) -> float:
        """Reports that are acknowledged, and those that are decided, by halves."""
        try:
            with self._lines(0.0) as aggregators:
                return (self.acknowledged + aggregators.decided(self._operator)) / 2
        except OSError:
            return 0

    def run(self, kills: int, database_kills: int) -> tuple[float, float, Opened]:
        """Seconds until all are acknowledged, and until the sum is open; the sum."""
        killer = threading.Thread(target=self.kill, args=(kills, database_kills))
        start, reports = time.monotonic(), self._file.window.enrolled
        killer.start()
        try:
            parts = [range(place, reports, SENDERS) for place in range(SENDERS)]
            with ThreadPoolExecutor(SENDERS) as pool:
                list(pool.map(self.send, parts))
            sent = time.monotonic() - start
            while self._progress() < reports:
                time.sleep(LOOK_SECONDS)
        except BaseException:
            self._ended.set()
            raise
        killer.join()
        opened = self.opened()
        return sent, time.monotonic() - start, opened

    def opened(self) -> Opened:
        with self._lines() as aggregators:
            return aggregators.open(self._operator)


@dataclass(frozen=True, kw_only=True)
class Options:
    """A window under load."""

    reports: int = 1000
    dimension: int = 9546
    kills: int = 0  # of workers
    database_kills: int = 0  # with --store postgresql
    store: str | None = None  # postgresql: a server of its own; or postgresql://...
    workers: int = 1  # of each aggregator
    folder: Path | None = None  # of the window, a new one or one only made
    only_make: bool = False  # make the reports and end
    write: Path | None = None


def measure(options: Options, folder: Path) -> tuple[dict[str, Any], bool]:
    """One window; and whether its sum is right."""
    if not (folder / MADE).exists():
        make(folder, options.reports, options.dimension)
    if options.only_make:
        return json.loads((folder / MADE).read_text()), True
    file = WindowFile.load(folder / WINDOW)
    own = options.store == "postgresql"
    with running(Path("/tmp")) if own else nullcontext() as server:
        store = server.url if server is not None else options.store
        processes = commands(folder, store=store, workers=options.workers)
        for process in processes:
            process.start()
        load = Load(folder, processes, server)
        sent, whole, first = load.run(options.kills, options.database_kills)
        if server is None:
            place = sum(path.stat().st_size for path in folder.rglob("*.sqlite"))
        else:
            place = int(server.asked("SELECT pg_database_size(current_database())"))
        kills = sum(process.kills for process in processes)
        for process in processes:
            process.kill()
            process.start()
        second = load.opened()
        for process in processes:
            process.kill()
        database_kills = 0 if server is None else server.kills
    reports, d = file.window.enrolled, file.window.dimension
    plain = sum(vector_of(user, d) for user in range(reports))
    noise = (first.total.view(np.int64) - plain) / (math.sqrt(2) * file.window.noise_std)
    right = (
        first.users == frozenset(range(reports))
        and (first.total == second.total).all()
        and abs(noise.std() - 1) < max(0.1, 2.4 / math.sqrt(d))
        and np.abs(noise).max() < 7  # any other report or noise would show
        and kills >= options.kills
        and database_kills >= options.database_kills
    )
    found = {
        "reports": reports,
        "dimension": d,
        "report_bytes": report_bytes(file.window.dimension, BOUND),
        "store": "PostgreSQL" if options.store else "SQLite",
        "workers_of_each_aggregator": options.workers,
        "kills_of_workers": kills,
        "kills_of_the_database": database_kills,
        **json.loads((folder / MADE).read_text()),
        "seconds_until_all_are_acknowledged": round(sent, 1),
        "seconds_until_the_sum_is_open": round(whole, 1),
        "cpu_seconds_of_workers": [round(process.cpu, 1) for process in processes],
        "cpu_ms_a_report": round(1000 * sum(each.cpu for each in processes) / reports, 2),
        "peak_mib": [round(process.peak_kb / 1024, 1) for process in processes],
        "longest_restart_seconds": round(max(max(each.restarts) for each in processes), 2),
        "store_bytes": place,
        "log_bytes": max(process.log.stat().st_size for process in processes),
        "noise_std_over_expected": round(float(noise.std()), 4),
    }
    return found, bool(right)


def main() -> int:
    """Prints one window's cost."""
    options = tyro.cli(Options)
    with tempfile.TemporaryDirectory() as temporary:
        found, right = measure(options, options.folder or Path(temporary))
    print(found, "exact" if right else "WRONG", flush=True)
    save(options.write, {"machine": provenance(), "window": found, "exact": right})
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
