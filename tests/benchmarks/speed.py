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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from pretrain.cli.output import new_file
from pretrain.cli.provenance import provenance

MOST_SECONDS = 180.0
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Line:
    """One kind of work."""

    work: str
    takes: str
    peer: float | None = None  # times as long as ours
    roofline: float | None = None  # ours, in times of the least

    def text(self) -> str:
        ratios = ("" if each is None else f"{each:.3g}" for each in (self.peer, self.roofline))
        return "{:62}{:>16}{:>8}{:>10}".format(self.work, self.takes, *ratios)


def heads(found: Any) -> Iterator[Line]:
    works = {
        "softmax": "1,000 users x 50 x 6,145: softmax, 150 epochs",
        "svm": "1,000 users x 50 x 6,145: SVM, 500 epochs",
        "exact": "1,000 users x 50 x 6,145: softmax, minimiser",
        "one user": "one user, 50,000 x 1,281: softmax, minimiser",
    }
    for case in found["cases"]:
        seconds = f"{case['seconds']:.2f} s"
        yield Line(works[case["case"]], seconds, case["ratio"], case["roofline_ratio"])


def embed(found: Any) -> Iterator[Line]:
    for encoder in dict.fromkeys(line["encoder"] for line in found["table"]):
        engines = [line for line in found["table"] if line["engine"] != "plain"]
        lines = [line for line in engines if line["encoder"] == encoder]
        best = max(lines, key=lambda line: line["ratio"])
        work = f"{encoder}, {best['pixels']} px: {best['engine']}, {best['compute']}"
        yield Line(work, f"{1000 / best['images_per_second']:.2f} ms/image", best["ratio"])


def simclr(found: Any) -> Iterator[Line]:
    for numbers, rates in found["images_per_second"].items():
        work = f"SimCLR step of 512 images, {numbers}, beside lightly"
        yield Line(work, f"{1000 / rates['ours']:.2f} ms/image", rates["ours"] / rates["lightly"])


def noise(found: Any) -> Iterator[Line]:
    worst = min(found["rows"], key=lambda row: row["opendp_ns"] / row["ns"])
    work = f"discrete Gaussian noise of std {worst['std']:.3g}, beside OpenDP"
    yield Line(work, f"{worst['ns']:.0f} ns/number", worst["opendp_ns"] / worst["ns"])


def intake(found: Any) -> Iterator[Line]:
    for name, row in found["formats"].items():
        yield Line(f"{found['rows']:,} pictures of 32 px, {name}", f"{row['seconds']:.1f} s")


def scale(found: Any) -> Iterator[Line]:
    for row in found["rows"]:
        work = f"release, {row['method']}, {row['users']:,} users x 20 x 129"
        yield Line(work, f"{1e6 * row['seconds'] / row['users']:.1f} us/user")


def secure_sum(found: Any) -> Iterator[Line]:
    for row in found["cost"]:
        work = f"secagg, {row['users']:,} users x {row['dimension']:,}: a user"
        yield Line(work, f"{row['seconds_per_client']:.2f} s")
    masks = found["masks"]
    work = "masks of secagg, one core, beside bare AES-256-CTR"
    yield Line(work, f"{masks['masks']:.2f} GB/s", roofline=1 / masks["ratio"])


def proofs(found: Any) -> Iterator[Line]:
    for party in ("user", "leader", "helper"):
        (median, *_) = found["milliseconds, median (quartiles)"][party]
        yield Line(f"proof of length, 9,546 numbers: {party}", f"{median:.1f} ms")


Lines = Callable[[Any], Iterator[Line]]
BENCHES: dict[str, tuple[Lines, str]] = {  # with their settings
    "heads": (heads, ""),
    "embed": (embed, "--reference-data DIR --rows 1000"),
    "simclr": (simclr, "--reference-data DIR --steps 5"),
    "noise": (noise, ""),
    "intake": (intake, "--rows 5000"),
    "scale": (scale, "--users 10000 100000"),
    "secure_sum": (secure_sum, "--users 100 1000"),
    "proofs": (proofs, "--reports 50"),
}


def main(
    reference_data: Path,
    only: tuple[str, ...] = tuple(BENCHES),
    out: Path = Path("results/speed"),
) -> int:
    """Prints the table, and writes it with the JSON of each bench."""
    out.mkdir(parents=True, exist_ok=True)
    machine = provenance()
    head = f"{'':62}{'takes':>16}{'peer':>8}{'roofline':>10}"
    lines, failed = [f"{machine}", "", head], False
    print(head)
    for name in only:
        of, settings = BENCHES[name]
        path = out / f"{name}.json"
        words = settings.replace("DIR", str(reference_data)).split()
        command = [sys.executable, str(HERE / f"bench_{name}.py"), *words, "--write", str(path)]
        begin = time.monotonic()
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        seconds = time.monotonic() - begin
        if not path.exists():
            raise RuntimeError(f"{name} must write {path}, ended: {ended.stdout[-500:]}")
        found = [line.text() for line in of(json.loads(path.read_text()))]
        lines += found
        failed |= ended.returncode != 0 or seconds > MOST_SECONDS
        print(
            "\n".join(found),
            f"\n    ({name}: {seconds:.0f} s, exit {ended.returncode})",
            flush=True,
        )
    with new_file(out / "table.txt") as file:
        file.write_text("\n".join(lines) + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
