"""Times and bytes of PINE at one user and at each aggregator; memory over many reports.

OMP_NUM_THREADS=1 python tests/benchmarks/bench_proofs.py [--reports 200] [--write FILE]
"""

import json
import os
import resource
import secrets
import time
from pathlib import Path

import numpy as np
import tyro

from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from train_distributed.proofs import field
from train_distributed.proofs.linear_proof import forgery_log2
from train_distributed.proofs.pine import NONCE_BYTES, Pine

DIMENSION, NORM_BOUND = 9546, 2**30
CLOCKS = ("milliseconds", "milliseconds of processor")  # the same but for other programs


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def main(reports: int = 200, write: Path | None = None) -> None:
    """Prints medians over all reports, and the peak of memory after the first and the last."""
    pine = Pine.for_bound(dimension=DIMENSION, norm_bound=NORM_BOUND)
    generator, key = np.random.default_rng(0), secrets.token_bytes(32)
    seconds: dict[str, list[np.ndarray]] = {"user": [], "leader": [], "helper": [], "message": []}
    totals, expected = [np.zeros(DIMENSION, np.uint64)] * 2, np.zeros(DIMENSION, np.int64)
    memory, sent = [], 0
    for _ in range(reports):
        vector = generator.normal(size=DIMENSION)
        vector = np.trunc(vector / np.linalg.norm(vector) * NORM_BOUND).astype(np.int64)
        nonce, times = secrets.token_bytes(NONCE_BYTES), [clocks()]
        public, shares = pine.shard(vector, nonce)
        times.append(clocks())
        states = []
        for j in range(2):
            states.append(pine.prepare_init(key, j, nonce, public, shares[j]))
            times.append(clocks())
        message = pine.prepare_message(states[0][1], states[1][1])
        outs = [pine.prepare_next(state, message) for state, _ in states]
        totals = [field.add(total, out) for total, out in zip(totals, outs, strict=True)]
        times.append(clocks())
        for name, spent in zip(seconds, np.diff(times, axis=0), strict=True):
            seconds[name].append(spent)
        expected, sent = expected + vector, 2 * len(public) + sum(map(len, shares))
        memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
    assert (pine.unshard(*totals) == expected).all()
    found = {
        "dimension": DIMENSION,
        "norm_bound": NORM_BOUND,
        "reports": reports,
        **{
            f"{clock}, median (quartiles)": {
                name: [
                    round(1000 * float(q), 2)
                    for q in np.quantile(np.array(spent)[:, place], (0.5, 0.25, 0.75))
                ]
                for name, spent in seconds.items()
            }
            for place, clock in enumerate(CLOCKS)
        },
        "bytes a report": sent,
        "bytes over the vector's": round(sent / (8 * DIMENSION), 3),
        "MiB at the peak after the 10th and the last report": [memory[9], memory[-1]],
        "log2 of a forgery": round(forgery_log2(pine.layout, pine.circuits), 2),
        "load": os.getloadavg()[0],
        "machine": provenance(),
    }
    print(json.dumps(found, indent=1, ensure_ascii=False))
    save(write, found)


if __name__ == "__main__":
    tyro.cli(main)
