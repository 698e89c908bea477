"""Lists, thresholds and quorums of protocol B, and the probabilities that they fail.

    python tests/benchmarks/bench_secagg_graph.py
    python tests/benchmarks/bench_secagg_graph.py --write results/secure_sum/graph.json

The fewest users in a sum are all but the stated dropouts. "-inf": a graph of all users, which
cannot fail.
"""

import sys
from dataclasses import asdict
from itertools import product
from pathlib import Path

import tyro

from tests.benchmarks.saving import save
from train_distributed.secure_sum.graph import choose_degree, whole_users

USERS = (20, 50, 100, 200, 500, 1000, 10_000, 100_000)
FRACTIONS = ((0.1, 0.2), (0.1, 0.1), (0.2, 0.1), (0.3, 0.05))


def main(write: Path | None = None) -> None:
    """Prints the table; writes it with --write."""
    print("corrupt dropout      w    k   t signers strays certain  log2 insecure  log2 aborts")
    rows = []
    for (corrupt, dropout), users in product(FRACTIONS, USERS):
        minimum = users - whole_users(users, dropout, "dropout_fraction")
        graph = choose_degree(users, corrupt, dropout, minimum)
        rows.append({"users": users, "corrupt": corrupt, "dropout": dropout} | asdict(graph))
        print(
            f"{corrupt:7} {dropout:7} {users:6} {graph.degree:4} {graph.threshold:3} "
            f"{graph.signers:7} {graph.strays:6} {graph.certain:7} {graph.log2_insecure:14.1f} "
            f"{graph.log2_aborts:12.1f}"
        )
    for row in rows:  # JSON has no infinity
        row |= {k: str(row[k]) for k in row if k.startswith("log2") and row[k] < -1e9}
    save(write, {"command": " ".join(["python", *sys.argv]), "graphs": rows})


if __name__ == "__main__":
    tyro.cli(main)
