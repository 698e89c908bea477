"""All eight benches of speed, one after the other: a line for each kind of work.

    python tests/benchmarks/speed.py --reference-data DIR [--only heads noise] \
        [--out results/speed]

Every bench is a process of its own, with settings that take at most three minutes on two cores
with AVX2, and writes its JSON; `table.txt` has for each kind of work what it takes, how many times
as long its peer takes in the same run (a plain loop, or another library), and how many times what
it takes is the least that the hardware allows (each bench says how that is counted). Packages of
the extras `bench`, `export` and `intake` are needed. Exit code 1 if a bench fails or takes longer.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tyro

from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance
from tests.benchmarks.common import Table

MOST_SECONDS = 180.0
Line = tuple[str, str, float | None, float | None]  # work, time, peer, roofline


def heads(found: Any) -> Iterator[Line]:
    works = {
        "softmax": "1,000 users x 50 x 6,145: softmax, 150 epochs",
        "svm": "1,000 users x 50 x 6,145: SVM, 500 epochs",
        "exact": "1,000 users x 50 x 6,145: softmax, minimiser",
        "one user": "one user, 50,000 x 1,281: softmax, minimiser",
    }
    for case in found["cases"]:
        seconds = f"{case['seconds']:.2f} s"
        yield works[case["case"]], seconds, case["ratio"], case["roofline_ratio"]


def embed(found: Any) -> Iterator[Line]:
    for encoder in dict.fromkeys(line["encoder"] for line in found["table"]):
        engines = [line for line in found["table"] if line["engine"] != "plain"]
        lines = [line for line in engines if line["encoder"] == encoder]
        best = max(lines, key=lambda line: line["ratio"])
        work = f"{encoder}, {best['pixels']} px: {best['engine']}, {best['compute']}"
        yield work, f"{1000 / best['images_per_second']:.2f} ms/image", best["ratio"], None


def simclr(found: Any) -> Iterator[Line]:
    for numbers, rates in found["images_per_second"].items():
        work = f"SimCLR step of 512 images, {numbers}, beside lightly"
        takes, peer = f"{1000 / rates['ours']:.2f} ms/image", rates["ours"] / rates["lightly"]
        yield work, takes, peer, None


def noise(found: Any) -> Iterator[Line]:
    worst = min(found["rows"], key=lambda row: row["opendp_ns"] / row["ns"])
    work = f"discrete Gaussian noise of std {worst['std']:.3g}, beside OpenDP"
    yield work, f"{worst['ns']:.0f} ns/number", worst["opendp_ns"] / worst["ns"], None


def intake(found: Any) -> Iterator[Line]:
    for name, row in found["formats"].items():
        yield f"{found['rows']:,} pictures of 32 px, {name}", f"{row['seconds']:.1f} s", None, None


def scale(found: Any) -> Iterator[Line]:
    for row in found["rows"]:
        work = f"release, {row['method']}, {row['users']:,} users x 20 x 129"
        yield work, f"{1e6 * row['seconds'] / row['users']:.1f} us/user", None, None


def secure_sum(found: Any) -> Iterator[Line]:
    for row in found["cost"]:
        work = f"secagg, {row['users']:,} users x {row['dimension']:,}: a user"
        yield work, f"{row['seconds_per_client']:.2f} s", None, None
    masks, work = found["masks"], "masks of secagg, one core, beside bare AES-256-CTR"
    yield work, f"{masks['masks']:.2f} GB/s", None, 1 / masks["ratio"]


def proofs(found: Any) -> Iterator[Line]:
    for party in ("user", "leader", "helper"):
        (median, *_) = found["milliseconds, median (quartiles)"][party]
        yield f"proof of length, 9,546 numbers: {party}", f"{median:.1f} ms", None, None


BENCHES: dict[str, tuple[Callable[[Any], Iterator[Line]], str]] = {  # with their commands
    "heads": (heads, "bench_training.py heads"),
    "embed": (embed, "bench_embed.py engines --reference-data DIR --rows 1000"),
    "simclr": (simclr, "bench_training.py simclr --reference-data DIR --steps 5"),
    "noise": (noise, "bench_scale.py noise"),
    "intake": (intake, "bench_embed.py formats --rows 5000"),
    "scale": (scale, "bench_scale.py users --users 10000 100000"),
    "secure_sum": (secure_sum, "bench_secure_sum.py secagg --users 100 1000"),
    "proofs": (proofs, "bench_secure_sum.py proofs --reports 50"),
}


def main(
    reference_data: Path, only: tuple[str, ...] = tuple(BENCHES), out: Path = Path("results/speed")
) -> int:
    """Prints the table, and writes it with the JSON of each bench."""
    out.mkdir(parents=True, exist_ok=True)
    machine, table, failed = provenance(), Table(), False
    for name in only:
        of, typed = BENCHES[name]
        script, *words = typed.replace("DIR", str(reference_data)).split()
        command = [sys.executable, Path(__file__).with_name(script), *words]
        path, begin = out / f"{name}.json", time.monotonic()
        ended = subprocess.run([*command, "--write", path], stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - begin
        if not path.exists():
            raise RuntimeError(f"{name} must write {path}, ended: {ended.stdout[-500:]}")
        for work, takes, *ratios in of(json.loads(path.read_text())):
            peer, roofline = ("" if each is None else f"{each:.3g}" for each in ratios)
            cells = {"work": f"{work:61}", "takes": f"{takes:>15}", "peer": peer}
            table.add(cells | {"roofline": roofline})
        failed |= ended.returncode != 0 or seconds > MOST_SECONDS
        print(f"    ({name}: {seconds:.0f} s, exit {ended.returncode})", flush=True)
    with new_file(out / "table.txt") as file:
        file.write_text(f"{machine}\n\n{table.text}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
