"""`shares` as a service under load: real adders, killed again and again; the sum must be exact.

    python tests/benchmarks/load_shares.py
    python tests/benchmarks/load_shares.py --reports 25000 50000 100000 --kills 30 \
        --held 1000000 --write results/secure_sum/service.json
    python tests/benchmarks/load_shares.py --reports 5000 --line-users 1 --tls --kills 0

Every adder is `blind-averaging federation aggregator` in its own process; clients are processes
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
import json
import os
import platform
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cryptography
import numpy as np
from shares_aggregators import Process, set_up, state_bytes
from shares_clients import Sent, authorities, client, keys_of, share

from pretrain.cli.output import new_file
from train_distributed.flower.aggregator_client import Aggregators
from train_distributed.flower.documents.party import read_private
from train_distributed.flower.documents.state import party_state
from train_distributed.flower.documents.window_file import WindowFile
from train_distributed.secure_sum.keys import KEY_BYTES, PrivateKeys
from train_distributed.secure_sum.parties import FIRST_SERVER
from train_distributed.secure_sum.report_store import ReportStore
from train_distributed.secure_sum.reports import Part, message_bytes
from train_distributed.secure_sum.window import Window


def measure(options: argparse.Namespace, users: int, kills: int) -> dict[str, Any]:
    """One window."""
    folder = Path(tempfile.mkdtemp(prefix="load-shares-", dir=options.folder))
    roll = b"".join(keys_of(user).public.verifying for user in range(users))
    file, processes = set_up(folder, options, roll)
    try:
        for process in processes:
            process.start()
        loads, start = [os.getloadavg()[0]], time.monotonic()
        sent = _reported(options, folder, processes, users, kills)
        taken = time.monotonic() - start
        loads.append(os.getloadavg()[0])
        opening = _opened(folder, file, processes, sent)
        return {
            "enrolled": users,
            **_of_clients(sent),
            "exact": True,
            "kills": kills,
            "seconds": round(taken, 2),
            "seconds_opening": round(opening, 3),
            **_of_adders(processes),
            "state_bytes": state_bytes(folder, len(processes)),
            "load_average": [round(load, 2) for load in loads],
        }
    finally:
        for process in processes:
            if process.running is not None and process.running.returncode is None:
                process.running.kill()
                process.running.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _reported(
    options: argparse.Namespace, folder: Path, processes: list[Process], users: int, kills: int
) -> list[Sent]:
    """All users report, while adders are killed at random moments."""
    rng, context = random.Random(users), get_context("fork")
    counter = context.Value("q", 0)
    pool = ProcessPoolExecutor(options.clients, context, initializer=share, initargs=(counter,))
    with pool:
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
        return [each.result() for each in work]


def _opened(folder: Path, file: WindowFile, processes: list[Process], sent: list[Sent]) -> float:
    """Seconds of the first of two openings: the second is from the disks of adders killed again.

    Raises:
        RuntimeError: either is not the sum of the acknowledged reports.
    """
    operator = read_private(folder / "adder0")
    with Aggregators(file.window, file.addresses, authorities(folder)) as adders:
        told = adders.status(operator)
        start = time.monotonic()
        openings = [adders.open(operator)]
        taken = time.monotonic() - start
        for process in processes:
            process.kill()
            process.start()
        openings.append(adders.open(operator))
    for process in processes:
        process.kill()
    acknowledged = sorted(user for each in sent for user in each.users)
    expected = np.stack([each.total for each in sent]).sum(0, np.uint64)
    for opened in openings:
        if not np.array_equal(opened.total, expected) or sorted(opened.users) != acknowledged:
            raise RuntimeError(f"the sum of {file.window.enrolled} reports is wrong, adders {told}")
    return taken


def _of_clients(sent: list[Sent]) -> dict[str, Any]:
    return {
        "reports_in_the_sum": sum(len(each.users) for each in sent),
        "left_out": sum(each.left_out for each in sent),
        "second_reports_refused": sum(each.refused for each in sent),
        "clients_cpu_seconds_making": round(sum(each.making for each in sent), 2),
        "clients_cpu_seconds_sending": round(sum(each.sending for each in sent), 2),
    }


def _of_adders(processes: list[Process]) -> dict[str, Any]:
    starts = [seconds for process in processes for seconds in process.restarts]
    return {
        "adders_cpu_seconds": [round(process.cpu, 2) for process in processes],
        "adders_peak_mb": [round(process.peak_kb / 1024, 1) for process in processes],
        "adders_lives": [process.kills for process in processes],
        "restart_seconds_mean": round(float(np.mean(starts)), 3),
        "restart_seconds_last": [round(process.restarts[-1], 3) for process in processes],
    }


def held(options: argparse.Namespace, users: int) -> dict[str, Any]:
    """Cost of adders that start with reports on their disks and open their sum."""
    folder = Path(tempfile.mkdtemp(prefix="load-shares-", dir=options.folder))
    file, processes = set_up(folder, options, os.urandom(KEY_BYTES * users))
    enrolled, found = file.enrolled(folder), []
    try:
        for adder, process in zip(sorted(file.window.servers), processes, strict=True):
            own = folder / f"adder{adder - FIRST_SERVER}"
            number = f"adder{adder - FIRST_SERVER}"
            state = party_state(file.window.digest, number, own / "state")
            holdings = ReportStore(state, enrolled, adder)
            size = 32 if adder < file.window.last else 0  # of a seed
            for start in range(0, users, 10_000):
                some = range(start, min(users, start + 10_000))
                parts = [Part(u, os.urandom(16), os.urandom(32), os.urandom(size)) for u in some]
                holdings.add(parts, holdings.total * 0)
            holdings.close_file()
            process.start()
        with Aggregators(file.window, file.addresses, authorities(folder)) as adders:
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
