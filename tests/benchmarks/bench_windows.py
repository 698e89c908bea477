"""Windows at work: killed aggregators (`reports`), very many users on one roll (`roll`)."""

import contextlib
import csv
import math
import multiprocessing
import os
import random
import string
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np

from embed import PublicTransform
from pretrain.cli.provenance import provenance
from tests.benchmarks.aggregators import Process, commands, make_window, memory_kb
from tests.benchmarks.common import command_line, save, show
from tests.benchmarks.postgresql import Server, running
from tests.embedding_sets import clusters
from tests.ports import free_port
from train_distributed.commands.federation.enrolling import COLUMNS
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys, Party
from train_distributed.federation.documents.place import Place, place_path, with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.federation.documents.window_file import WINDOW, WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import make_report, report_bytes
from train_distributed.secure_sum.roll import Roll

BOUND, SENDERS, AGAIN, LOOK_SECONDS, PATIENCE = 2**20, 8, 100, 0.5, 4 * 3600.0
REPORTS = "reports.bin"


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


def make(folder: Path, reports: int, dimension: int) -> dict[str, float]:
    """A window, and the reports of all its users; what that took."""
    start, keys = time.monotonic(), [PrivateKeys.generate() for _ in range(reports)]
    make_window(folder, keys, dimension, BOUND)
    (folder / REPORTS).touch()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(os.cpu_count(), mp_context=context) as pool:
        parts = range(0, reports, 500)
        work = [pool.submit(make_part, folder, at, keys[at : at + 500]) for at in parts]
        took = {"cpu_seconds_of_making": round(sum(each.result() for each in work), 1)}
    return {"seconds_of_making": round(time.monotonic() - start, 1)} | took


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
        with self._lines() as aggregators, (self._folder / REPORTS).open("rb") as file:
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
        return sent, time.monotonic() - start, self.opened()

    def opened(self) -> Opened:
        with self._lines() as aggregators:
            return aggregators.open(self._operator)


def load(
    reports: int = 1000,
    dimension: int = 9546,
    kills: int = 0,
    database_kills: int = 0,
    store: Literal["sqlite", "postgresql"] = "sqlite",
    workers: int = 1,
    write: Path | None = None,
) -> int:
    """A window under load, killed again and again; the sum must be exact but noise.

    Aggregators are `blind-averaging federation aggregator` in processes of their own, each with
    SQLite, or as several workers each on one PostgreSQL, which is made for it from the
    distribution's packages. All reports are made first; then threads send them, one in a hundred
    twice. Workers and the database are killed (SIGKILL, immediate stop) at random moments all
    through, the database for up to five seconds, and every worker between two openings. The noise
    of the sum is compared with what both add: its standard deviation within a tenth, at dimension
    64 within three tenths. Exit code 1 where the sum is of other users, the two openings differ, or
    fewer were killed than asked for.
    """
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        found: dict[str, Any] = {"reports": reports, "dimension": dimension}
        found |= {"report_bytes": report_bytes(dimension, BOUND)} | make(folder, reports, dimension)
        own = store == "postgresql"
        found |= {"workers_of_each_aggregator": workers, "store": "PostgreSQL" if own else "SQLite"}
        server = stack.enter_context(running(Path("/tmp"))) if own else None
        processes = commands(folder, store=server.url if server else None, workers=workers)
        for process in processes:
            process.start()
        load = Load(folder, processes, server)
        sent, whole, first = load.run(kills, database_kills)
        found["store_bytes"] = sum(path.stat().st_size for path in folder.rglob("*.sqlite"))
        if server is not None:
            found["store_bytes"] = int(server.asked("SELECT pg_database_size(current_database())"))
        found["kills_of_workers"] = sum(process.kills for process in processes)
        for process in processes:
            process.kill()
            process.start()
        second = load.opened()
        for process in processes:
            process.kill()
        found["kills_of_the_database"] = 0 if server is None else server.kills
        found["log_bytes"] = max(process.log.stat().st_size for process in processes)
        noise_std = WindowFile.load(folder / WINDOW).window.noise_std
    plain = sum(vector_of(user, dimension) for user in range(reports))
    noise = (first.total.view(np.int64) - plain) / (math.sqrt(2) * noise_std)
    right = bool(
        first.users == frozenset(range(reports))
        and (first.total == second.total).all()
        and abs(noise.std() - 1) < max(0.1, 2.4 / math.sqrt(dimension))
        and np.abs(noise).max() < 7  # any other report or noise would show
        and found["kills_of_workers"] >= kills
        and found["kills_of_the_database"] >= database_kills
    )
    found |= {
        "seconds_until_all_are_acknowledged": round(sent, 1),
        "seconds_until_the_sum_is_open": round(whole, 1),
        "cpu_seconds_of_workers": [round(process.cpu, 1) for process in processes],
        "cpu_ms_a_report": round(1000 * sum(each.cpu for each in processes) / reports, 2),
        "peak_mib": [round(process.peak_kb / 1024, 1) for process in processes],
        "longest_restart_seconds": round(max(max(each.restarts) for each in processes), 2),
        "noise_std_over_expected": round(float(noise.std()), 4),
    }
    show(found | {"exact": right})
    save(write, {"machine": provenance(), "window": found, "exact": right})
    return int(not right)


ROWS, P, CLASSES = (20, 50, 100), 128, 10  # sizes of users; p and K as for CIFAR-10
BATCH, STARTS = 10_000, 5
MOST_BYTES, MOST_SECONDS = 10_000, 2.0
COMMAND = (sys.executable, "-m", "train_distributed", "federation")


def lines(start: int, stop: int) -> list[dict[str, Any]]:
    """Party files of some users, as lines of a table."""
    found = []
    for number in range(start, stop):
        keys = PrivateKeys.generate()
        own, name = Keys.of(keys.public).fields, f"phone-{number:09d}"
        party = Party(name=name, role="user", rows=ROWS[number % len(ROWS)], **own)
        found.append(party.signed(keys).fields)
    return found


def start(*arguments: str, **given: Any) -> "subprocess.Popen[str]":
    given |= {"text": True, "stdout": subprocess.PIPE, "env": os.environ | {"OMP_NUM_THREADS": "1"}}
    return subprocess.Popen([*COMMAND, *arguments], **given)


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """Processor seconds so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def ended(process: "subprocess.Popen[str]") -> dict[str, float]:
    """Peak and processor seconds of a process that must end well; looked at 20 times a second."""
    peak = seconds = 0.0
    while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            peak, seconds = memory_kb(process.pid, "VmHWM") / 1024, cpu_seconds(process)
        time.sleep(0.05)
    if process.wait():
        raise RuntimeError(f"command must end well, ended with {process.returncode}")
    return {"peak_mib": round(peak, 1), "cpu_seconds": round(seconds, 1)}


def init(home: Path, users: int, own: dict[str, Any]) -> dict[str, float]:
    """Makes the federation; all users but one are made on the way."""
    words = "--transform public.safetensors --hosts 127.0.0.1 --protocol shares"
    words += f" --epsilon 1 --delta {0.1 / (users * max(ROWS))}"
    words += f" --class-names {' '.join(string.ascii_lowercase[:CLASSES])}"
    given = ("--folder", "fed", "--parties", "server/server.party.json", "-", *words.split())
    before = time.monotonic()
    process = start("init", *given, cwd=home, stdin=subprocess.PIPE)
    assert process.stdin is not None
    table = csv.DictWriter(process.stdin, COLUMNS)
    table.writeheader()
    starts = range(0, users, BATCH)
    with ProcessPoolExecutor(1) as pool:
        stops = [min(users, first + BATCH) for first in starts]
        for first, batch in zip(starts, pool.map(lines, starts, stops), strict=True):
            if 0 <= users // 2 - first < len(batch):
                batch[users // 2 - first] = own
            table.writerows(batch)
    process.stdin.close()
    found = ended(process)
    return found | {"seconds_making_users_included": round(time.monotonic() - before, 1)}


def terms_seconds(home: Path, digest: str) -> tuple[float, float]:
    """Seconds, and those of the processor, until a user sees the terms; then it is ended."""
    words = "--folder user --invitation fed/invitation --window window/window.json"
    words += f" --embeddings user/embeddings --accept {digest} --patience 0"
    before = time.monotonic()
    process = start("report", *words.split(), cwd=home, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    first = process.stdout.readline()
    seconds = time.monotonic() - before, cpu_seconds(process)
    if not first.startswith("user "):
        raise RuntimeError(f"terms must be shown, got {first!r}")
    process.kill()
    process.communicate()
    return seconds


def aggregator(home: Path, folder: str) -> dict[str, float]:
    """Seconds until an aggregator listens, and its peak."""
    words = f"aggregator --folder {home / folder} --window {home / 'window'}"
    process = Process([*COMMAND, *words.split()], home / f"{folder}.log")
    process.start()
    process.kill()
    found = {"seconds_until_it_listens": process.restarts[0], "cpu_seconds": process.cpu}
    return {k: round(v, 2) for k, v in (found | {"peak_mib": process.peak_kb / 1024}).items()}


def measure(users: int, home: Path) -> dict[str, Any]:
    """All of it, for so many users."""
    transform = PublicTransform.fit(clusters(500, CLASSES, P, seed=99), components=100)
    transform.save(home / "public.safetensors")
    for words in ("server --name server --server --hosts 127.0.0.1", "user --name me --rows 50"):
        subprocess.run([*COMMAND, "join", "--folder", *words.split()], cwd=home, check=True)
    keys, number = read_private(home / "user"), users // 2
    rows = ROWS[number % len(ROWS)]
    clusters(rows, CLASSES, P).save(home / "user" / "embeddings")
    own = Party(name="me", role="user", rows=rows, **Keys.of(keys.public).fields)
    found: dict[str, Any] = {"users": users}
    found["init"] = init(home, users, own.signed(keys).fields)
    fed = home / "fed"
    federation = with_roll(Federation.load(fed / "federation.json"), fed)
    assert isinstance(federation.known, Roll)
    (fed / "invitation" / "places").mkdir(exist_ok=True)
    place = place_path(fed / "invitation" / "places", keys.public.verifying)
    Place.of(number, federation.known.placed(number)).save(place)
    words = f"--folder fed --aggregators 127.0.0.1:{free_port()} 127.0.0.1:{free_port()}".split()
    found["window"] = ended(start("window", *words, "--out", "window", cwd=home))
    files = {"federation.json": fed / "federation.json", "own place": place, "roll": fed / "roll"}
    files["window.json"] = home / "window" / "window.json"
    found["bytes"] = {name: path.stat().st_size for name, path in files.items()}
    times = [terms_seconds(home, federation.digest.hex()) for _ in range(STARTS)]
    walls, cpus = ([round(each, 2) for each in sorted(kind)] for kind in zip(*times, strict=True))
    found["seconds_until_the_terms_are_shown"], found["of_which_cpu"] = walls, cpus
    found["load_average"] = round(os.getloadavg()[0], 1)
    found["aggregators"] = [aggregator(home, folder) for folder in ("fed", "server")]
    return found


def roll(users: tuple[int, ...] = (1000,), write: Path | None = None) -> int:
    """Very many users on one roll: what `init`, one of the users and an aggregator need.

    Users' party files (made here, signed by keys of their own) go as a table to `federation init
    --parties server.party.json -`. Then one user, in the middle of the roll, starts `federation
    report`: the time is from the start of the process until the terms are shown, before the
    window's aggregator is asked, and likewise of the processor, which is what counts where other
    programs run. Both aggregators check the whole roll when they start. Peaks are the kernel's,
    mapped pages of the roll included. Exit code 1 where a user's file is longer than 10 kB, or its
    terms take more than 2 s of the processor at best.
    """
    every = []
    for count in users:
        with tempfile.TemporaryDirectory() as home:
            every.append(measure(count, Path(home)))
        show(every[-1])
    save(write, {"machine": provenance(), "rolls": every})
    small = all(found["bytes"]["own place"] <= MOST_BYTES for found in every)
    fast = all(found["of_which_cpu"][0] <= MOST_SECONDS for found in every)
    return int(not (small and fast))


if __name__ == "__main__":
    command_line(reports=load, roll=roll)
