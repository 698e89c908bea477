"""A window under load: real aggregators, killed again and again; the sum must be exact but noise.

    python tests/benchmarks/bench_reports.py --reports 10000 --kills 30
    python tests/benchmarks/bench_reports.py --reports 2000 --kills 5 --store postgresql://...

Both aggregators are `blind-averaging federation aggregator` in processes of their own; users are
threads that make reports of d numbers and send them, one in a hundred twice. Aggregators are killed
(SIGKILL) at random moments all through, and both between two openings. The noise of the sum is
compared with what both add: its standard deviation within a tenth. Exit code 1 where the sum is of
other users, or two openings differ.
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from aggregators import Process, set_up

from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance
from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.documents.window_file import WindowFile
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.opening import Opened
from train_distributed.secure_sum.reports import make_report, report_bytes

BOUND, SENDERS, AGAIN = 2**20, 8, 100


def vector_of(user: int, dimension: int) -> np.ndarray:
    return np.random.default_rng(user).integers(-5000, 5000, dimension)


def send(file: WindowFile, keys: list[PrivateKeys], users: range) -> None:
    """Reports of some users, over one connection."""
    with Aggregators(file.window, file.addresses, patience=300.0) as aggregators:
        for user in users:
            vector = vector_of(user, file.window.dimension)
            report = make_report(file.window, user, keys[user], vector, BOUND)
            for _ in range(2 if user % AGAIN == 0 else 1):
                aggregators.report(user, report)


def kill(processes: list[Process], kills: int, seconds: float, ended: threading.Event) -> None:
    """So many kills, at random moments; whoever was killed is started at once."""
    for _ in range(kills):
        if ended.wait(random.expovariate(1 / seconds)):
            return
        victim = random.choice(processes)
        victim.kill()
        victim.start()


def opened(file: WindowFile, operator: PrivateKeys) -> Opened:
    with Aggregators(file.window, file.addresses, patience=600.0) as aggregators:
        return aggregators.open(operator)


def measure(options: argparse.Namespace, folder: Path) -> tuple[dict[str, Any], bool]:
    """One window; and whether its sum is right."""
    keys = [PrivateKeys.generate() for _ in range(options.reports)]
    made = set_up(folder, keys, options.dimension, BOUND, store=options.store)
    file, processes, operator = made
    for process in processes:
        process.start()
    ended, start = threading.Event(), time.monotonic()
    seconds = options.reports * 0.03 / max(1, options.kills)
    killer = threading.Thread(target=kill, args=(processes, options.kills, seconds, ended))
    killer.start()
    parts = [range(place, options.reports, SENDERS) for place in range(SENDERS)]
    with ThreadPoolExecutor(SENDERS) as pool:
        list(pool.map(lambda part: send(file, keys, part), parts))
    sent = time.monotonic() - start
    ended.set()
    killer.join()
    first = opened(file, operator)
    whole = time.monotonic() - start
    for process in processes:
        process.kill()
        process.start()
    second = opened(file, operator)
    for process in processes:
        process.kill()
    plain = sum(vector_of(user, options.dimension) for user in range(options.reports))
    noise = first.total.view(np.int64) - plain
    expected = 2**0.5 * file.window.noise_std
    right = (
        first.users == frozenset(range(options.reports))
        and (first.total == second.total).all()
        and abs(noise.std() / expected - 1) < 0.1
    )
    found = {
        "reports": options.reports,
        "dimension": options.dimension,
        "kills": sum(process.kills for process in processes) - 2,
        "store": "PostgreSQL" if options.store else "SQLite",
        "seconds_until_all_are_acknowledged": round(sent, 1),
        "seconds_until_the_sum_is_open": round(whole, 1),
        "noise_std_over_expected": round(float(noise.std() / expected), 4),
        "cpu_seconds": [round(process.cpu, 1) for process in processes],
        "peak_mib": [round(process.peak_kb / 1024, 1) for process in processes],
        "longest_restart_seconds": round(max(max(p.restarts) for p in processes), 2),
        "report_bytes": report_bytes(file.window, BOUND),
    }
    return found, bool(right)


def main() -> int:
    """Prints one window's cost."""
    parser = argparse.ArgumentParser(description="a window under load")
    parser.add_argument("--reports", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=9546)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--store", help="postgresql://...")
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found, right = measure(options, Path(folder))
    print(found, "exact" if right else "WRONG", flush=True)
    if options.write:
        with new_file(options.write) as path:
            text = json.dumps({"machine": provenance(), "window": found, "exact": right}, indent=1)
            path.write_text(text + "\n")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
