"""Very many users on one roll: what `init`, one of the users and an aggregator need.

    python tests/benchmarks/bench_roll.py --users 1000000

Users' party files (made here, signed by keys of their own) go as a table to `federation init
--parties server.party.json -`, through standard input.
Then one user, in the middle of the roll, starts `federation report`: the time is from the start of
the process until the terms are shown, before the window's aggregator is asked, and likewise of the
processor, which is what counts where other programs run. Both aggregators check the whole roll when
they start. Peaks are the kernel's, mapped pages of the roll included. Exit code 1 where a user's
file is longer than 10 kB, or its terms take more than 2 s of the processor at best.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance
from tests.ports import free_port
from train_distributed.commands.federation.enrolling import COLUMNS
from train_distributed.federation.documents.federation import Federation
from train_distributed.federation.documents.party import Keys, Party
from train_distributed.federation.documents.place import Place, place_path, with_roll
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.roll import Roll

ROWS, P, CLASSES = (20, 50, 100), 128, 10  # sizes of users; p and K as for CIFAR-10
BATCH, STARTS = 10_000, 5
MOST_BYTES, MOST_SECONDS = 10_000, 2.0
COMMAND = (sys.executable, "-m", "train_distributed", "federation")


def rows_of(number: int) -> int:
    return ROWS[number % len(ROWS)]


def lines(start: int, stop: int) -> list[dict[str, Any]]:
    """Party files of some users, as lines of a table."""
    found = []
    for number in range(start, stop):
        keys = PrivateKeys.generate()
        own, name = Keys.of(keys.public).fields, f"phone-{number:09d}"
        party = Party(name=name, role="user", rows=rows_of(number), **own)
        found.append(party.signed(keys).fields)
    return found


def start(*arguments: object, **given: Any) -> "subprocess.Popen[str]":
    command = [*COMMAND, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, env=environment, **given)


def peak_mib(process: "subprocess.Popen[str]") -> float:
    """Largest resident memory so far; 0 when it has ended."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
    return round(int(found[0]) / 1024, 1) if found else 0.0


def cpu_seconds(process: "subprocess.Popen[str]") -> float:
    """Processor seconds so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def ended(process: "subprocess.Popen[str]") -> dict[str, float]:
    """Peak and processor seconds of a process that must end well; looked at 20 times a second."""
    peak = seconds = 0.0
    while not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
        peak, seconds = max(peak, peak_mib(process)), cpu_seconds(process)
        time.sleep(0.05)
    if process.wait():
        raise RuntimeError(f"command must end well, ended with {process.returncode}")
    return {"peak_mib": peak, "cpu_seconds": round(seconds, 1)}


def embeddings(seed: int, rows: int) -> EmbeddingSet:
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, CLASSES, rows)
    names = [f"class-{k}" for k in range(CLASSES)]
    points = draw.normal(size=(rows, P)).astype(np.float32)
    split = np.zeros(rows, np.int8)
    return EmbeddingSet(embeddings=points, labels=labels, split=split, meta={"class_names": names})


def init(home: Path, users: int, own: dict[str, Any]) -> dict[str, float]:
    """Makes the federation; all users but one are made on the way."""
    words = "--transform public.safetensors --hosts 127.0.0.1 --protocol shares"
    words += f" --epsilon 1 --delta {0.1 / (users * max(ROWS))}"
    words += f" --class-names {' '.join(f'class-{k}' for k in range(CLASSES))}"
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
    before = time.monotonic()
    words = ("--folder", folder, "--window", "window")
    process = start("aggregator", *words, cwd=home, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    while "listening" not in (line := process.stdout.readline()):
        if not line:
            raise RuntimeError("an aggregator must listen, ended")
    found = {
        "seconds_until_it_listens": round(time.monotonic() - before, 2),
        "cpu_seconds": cpu_seconds(process),
        "peak_mib": peak_mib(process),
    }
    process.kill()
    process.communicate()
    return found


def measure(users: int, home: Path) -> dict[str, Any]:
    """All of it, for so many users."""
    PublicTransform.fit(embeddings(99, 500), components=100).save(home / "public.safetensors")
    for words in (
        "--folder server --name server --server --hosts 127.0.0.1",
        "--folder user --name me --rows 50",
    ):
        subprocess.run([*COMMAND, "join", *words.split()], cwd=home, check=True)
    keys, number = read_private(home / "user"), users // 2
    rows = rows_of(number)
    embeddings(1, rows).save(home / "user" / "embeddings")
    own = Party(name="me", role="user", rows=rows, **Keys.of(keys.public).fields)
    found: dict[str, Any] = {"users": users}
    found["init"] = init(home, users, own.signed(keys).fields)
    fed = home / "fed"
    federation = with_roll(Federation.load(fed / "federation.json"), fed)
    assert isinstance(federation.known, Roll)
    (fed / "invitation" / "places").mkdir(exist_ok=True)
    place = place_path(fed / "invitation" / "places", keys.public.verifying)
    Place.of(number, federation.known.placed(number)).save(place)
    addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    words = ("--folder", "fed", "--aggregators", *addresses, "--out", "window")
    made = start("window", *words, cwd=home)
    found["window"] = ended(made)
    files = {"federation.json": fed / "federation.json", "own place": place, "roll": fed / "roll"}
    files["window.json"] = home / "window" / "window.json"
    found["bytes"] = {name: path.stat().st_size for name, path in files.items()}
    times = [terms_seconds(home, federation.digest.hex()) for _ in range(STARTS)]
    walls, cpus = ([round(each, 2) for each in sorted(kind)] for kind in zip(*times, strict=True))
    found["seconds_until_the_terms_are_shown"], found["of_which_cpu"] = walls, cpus
    found["load_average"] = round(os.getloadavg()[0], 1)
    found["aggregators"] = [aggregator(home, folder) for folder in ("fed", "server")]
    return found


def main() -> int:
    """Prints what it takes."""
    parser = argparse.ArgumentParser(description="very many users on one roll")
    parser.add_argument("--users", type=int, nargs="+", default=[1000])
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    every = []
    for users in options.users:
        with tempfile.TemporaryDirectory() as home:
            every.append(measure(users, Path(home)))
        print(json.dumps(every[-1]), flush=True)
    if options.write:
        with new_file(options.write) as path:
            text = json.dumps({"machine": provenance(), "rolls": every}, indent=1)
            path.write_text(text + "\n")
    small = all(found["bytes"]["own place"] <= MOST_BYTES for found in every)
    fast = all(found["of_which_cpu"][0] <= MOST_SECONDS for found in every)
    return 0 if small and fast else 1


if __name__ == "__main__":
    sys.exit(main())
