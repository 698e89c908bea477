"""Nanoseconds a draw of discrete Gaussian noise, beside OpenDP's exact sampler.

    python tests/benchmarks/bench_noise.py [--write FILE]      (extra: bench)

At every standard deviation both take turns at 61,450 numbers (6,145 x 10, what a user submits); the
best of their turns counts. Exit code 1 if OpenDP takes less than ten times as long anywhere.
"""

import math
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import tyro

from tests.benchmarks.saving import save
from train_distributed.privacy.discrete_gaussian import discrete_gaussian

STDS = [0.3, 1.0, 3.7, 40.0, 2.0**10, 1.7 * 2**20, 2.0**40 / 3, 2.0**45, 2.0**53]
COUNT, ROUNDS, BAR = 61_450, 3, 10.0


def opendp_sampler(std: float) -> Callable[[], object]:
    """OpenDP's exact sampler (Canonne, Kamath, Steinke 2020), as a release would call it."""
    from opendp.domains import atom_domain, vector_domain  # pyright: ignore[reportMissingImports]
    from opendp.measurements import make_gaussian  # pyright: ignore[reportMissingImports]
    from opendp.metrics import l2_distance  # pyright: ignore[reportMissingImports]
    from opendp.mod import enable_features  # pyright: ignore[reportMissingImports]

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    zeros = [0] * COUNT
    return lambda: make_gaussian(*space, scale=std)(zeros)


def nanoseconds(std: float) -> tuple[float, float]:
    """A draw of ours and of OpenDP's."""
    sides = (lambda: discrete_gaussian(std, COUNT), opendp_sampler(std))
    best = [math.inf, math.inf]
    for _ in range(ROUNDS):
        for i, draw in enumerate(sides):
            begin = time.perf_counter()
            draw()
            best[i] = min(best[i], (time.perf_counter() - begin) / COUNT * 1e9)
    return best[0], best[1]


def main(write: Path | None = None) -> int:
    """Prints a line for every standard deviation."""
    print("    standard deviation   ns a draw   OpenDP's   ratio")
    rows = []
    for std in STDS:
        ours, theirs = nanoseconds(std)
        rows.append({"std": std, "ns": ours, "opendp_ns": theirs})
        print(f"{std:22.9g} {ours:11.0f} {theirs:10.0f} {theirs / ours:7.1f}", flush=True)
    versions = {name: version(name) for name in ("numpy", "opendp")}
    save(write, {"machine": platform.machine(), **versions, "rows": rows})
    return int(min(row["opendp_ns"] / row["ns"] for row in rows) < BAR)


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
