"""Seconds, users/s and peak memory of the solvers, and their ratio to a plain autograd loop.

    python tests/benchmarks/bench_heads.py [--json FILE]

Every case runs in a process of its own, so that peaks do not mix; best of three. The plain loop
runs on a few of the same users, with the same type and threads, and must find the same weights.
"""

import argparse
import json
import math
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from heads import Head, HuberSVMHead, SoftmaxHead, default_tolerance, fit_exact, fit_sgd

REPEATS = 3
EQUAL = 1e-4  # relative Frobenius distance to the plain loop's weights
CLASSES = 10


@dataclass(frozen=True)
class Case:
    """One head on data of one size."""

    head: Head
    users: int
    n: int
    dim: int
    seconds: float  # bar on an idle machine with two cores
    epochs: int | None = None  # None: the certified solver
    ratio: float | None = None  # bar
    plain_users: int = 3

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return fit_exact(self.head, x, y).weights
        return fit_sgd(self.head, x, y, epochs=self.epochs, batch_size=20)

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return plain_exact(self.head, x, y, default_tolerance(self.head, self.n))
        return plain_sgd(self.head, x, y, self.epochs, 20)


PAPER = {"num_classes": CLASSES, "clip_norm": 34.854}
CASES = {
    "softmax": Case(SoftmaxHead(**PAPER, l2_reg=10, radius=0.6), 1000, 50, 6145, 3, 150, 300),
    "svm": Case(HuberSVMHead(**PAPER, l2_reg=100, radius=0.06), 1000, 50, 6145, 10, 500),
    "exact": Case(SoftmaxHead(**PAPER, l2_reg=10), 1000, 50, 6145, 1.5),
    "one user": Case(
        SoftmaxHead(num_classes=CLASSES, l2_reg=0.01, clip_norm=1),
        1,
        50_000,
        1281,
        8,
        plain_users=1,
    ),
}
MEMORY = 4.0  # GiB, bar


def plain_sgd(head: Head, x: Tensor, y: Tensor, epochs: int, b: int) -> Tensor:
    weights = torch.zeros(x.shape[1], CLASSES, requires_grad=True)
    targets, m = head.targets(y, x.dtype), 0
    for _ in range(epochs):
        for start in range(0, len(y), b):
            m += 1
            part = slice(start, start + b)
            loss = head.data_loss(x[part] @ weights, targets[part]).sum() / b
            loss = loss + head.l2_reg / 2 * weights.square().sum()
            (gradient,) = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                weights -= min(1 / head.smoothness, 1 / (head.l2_reg * m)) * gradient
                norm = torch.linalg.vector_norm(weights, dim=head.norm_dims, keepdim=True)
                weights *= torch.where(norm > head.radius, head.radius / norm, 1.0)
    return weights.detach()


def plain_exact(head: Head, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    weights = torch.zeros(x.shape[1], CLASSES, requires_grad=True)
    targets, previous = head.targets(y, x.dtype), weights.detach().clone()
    momentum = math.sqrt(head.smoothness / head.l2_reg)
    momentum = (momentum - 1) / (momentum + 1)
    for _ in range(math.ceil(40 * math.sqrt(head.smoothness / head.l2_reg))):  # float32's floor
        loss = head.data_loss(x @ weights, targets).mean()
        loss = loss + head.l2_reg / 2 * weights.square().sum()
        (gradient,) = torch.autograd.grad(loss, weights)
        if gradient.norm() <= tolerance:
            break
        with torch.no_grad():
            following = weights - gradient / head.smoothness
            weights.copy_(following + momentum * (following - previous))
            previous = following
    return weights.detach()


def embeddings(case: Case) -> tuple[Tensor, Tensor]:
    """Rows like a ReLU network's: non-negative, one shared direction, one per class; in place."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(CLASSES, (case.users, case.n), generator=generator)
    shared = torch.rand(case.dim - 1, generator=generator)
    classes = 0.5 * torch.randn(CLASSES, case.dim - 1, generator=generator)
    x = torch.empty(case.users, case.n, case.dim)
    reach = math.sqrt(case.head.clip_norm**2 * (1 - 1e-5) - constant(case) ** 2)
    flat, labels = x.view(-1, case.dim), y.view(-1)
    for start in range(0, len(flat), 500):
        rows = flat[start : start + 500]
        rows.normal_(generator=generator)
        rows[:, 1:] += shared + classes[labels[start : start + 500]]
        rows.relu_()
        rows[:, 1:] *= reach / torch.linalg.vector_norm(rows[:, 1:], dim=1, keepdim=True)
        rows[:, 0] = constant(case)
    return x, y


def constant(case: Case) -> float:
    """The constant column, inside the clip norm."""
    return min(1.0, case.head.clip_norm / 2)


def best(run: Callable[[], object], repeats: int = REPEATS) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def distance(case: Case, x: Tensor, y: Tensor) -> float:
    """Of the plain loop's weights to ours, both solved far below the default tolerance."""
    if case.epochs is None:
        tolerance = default_tolerance(case.head, case.n)
        ours = fit_exact(case.head, x, y, tolerance=tolerance / 100).weights
        plain = plain_exact(case.head, x, y, tolerance / 100)
    else:
        ours, plain = case.fit(x, y), case.plain(x, y)
    return ((ours - plain).norm() / plain.norm()).item()


def measure(name: str) -> dict[str, float | str]:
    """Runs one case in this process."""
    case = CASES[name]
    x, y = embeddings(case)
    plain = [best(lambda u=u: case.plain(x[u], y[u]), 1) for u in range(case.plain_users)]
    seconds = best(lambda: case.fit(x, y))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    per_user = seconds / case.users
    return {
        "case": name,
        "seconds": seconds,
        "users_per_second": 1 / per_user,
        "peak_gib": peak,
        "plain_seconds_per_user": min(plain),
        "ratio": min(plain) / per_user,
        "distance": distance(case, x[0], y[0]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--case", choices=CASES, help="measure one case here and print JSON")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(options.case)))
        return 0
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, best of {REPEATS}")
    print(
        f"{'case':9} {'seconds':>8} {'bar':>5} {'users/s':>8} {'GiB':>5} "
        f"{'plain s/user':>12} {'ratio':>6} {'bar':>4} {'distance':>9}"
    )
    rows = []
    for name, case in CASES.items():
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout)
        rows.append(row)
        print(
            f"{name:9} {row['seconds']:8.2f} {case.seconds:5.1f} {row['users_per_second']:8.1f} "
            f"{row['peak_gib']:5.2f} {row['plain_seconds_per_user']:12.3f} {row['ratio']:6.0f} "
            f"{case.ratio or '-':>4} {row['distance']:9.1e}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "cases": rows}, indent=2) + "\n")
    return int(any(row["distance"] > EQUAL or row["peak_gib"] > MEMORY for row in rows))


if __name__ == "__main__":
    sys.exit(main())
