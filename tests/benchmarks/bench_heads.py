"""Seconds and peak memory of the solvers against a plain autograd loop and the roofline.

    python tests/benchmarks/bench_heads.py [--write FILE]

Every case runs in a process of its own, so that peaks do not mix; best of three. The plain loop
runs on a few of the same users, with the same type and threads, and must find the same weights.

The roofline is max(Σ flops / rate, bytes / bandwidth) of the cheapest formulation known to us,
whatever the solver does. Rates are measured in the process that times the solver, each on products
of the shapes that the formulation has, with operands in the cache. Not counted, so that 1 is out of
reach: the check of the rows' norms in float64, conversions, element-wise work but exponentials,
fresh memory. With n rows, d columns, K classes, and two flops for a multiplication and an addition:

* Projected SGD of E epochs, n < d, in the Gram matrix: 2n²d for XXᵀ (half by symmetry, but BLAS's
  syrk takes as long as its gemm at this size), 2n²K and, for softmax, nK exponentials an epoch,
  2ndK for the weights; X and W once. (On the weights: 4ndK an epoch.)
* Minimiser, n < d, in the Gram matrix: 2n²d in float64, 2n²K and nK exponentials for each of 14
  gradients, as many as L-BFGS takes (accelerated gradient: 50), 2ndK; X and W once.
* Minimiser, n ≥ d: five gradients of all rows in float64, 4ndK each and half of that at zero, and
  between them four times 24 gradients of every 31st row in float32; X once a gradient. (On all
  rows L-BFGS takes 17 gradients, accelerated gradient 81: counted on 6,200 such rows.)
"""

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
import tyro
from torch import Tensor

from heads import Head, HuberSVMHead, SoftmaxHead, default_tolerance, fit_exact, fit_sgd
from tests.benchmarks.saving import save

REPEATS = 3
EQUAL = 1e-4  # relative Frobenius distance to the plain loop's weights
CLASSES = 10
CHECKED = 2000  # rows of the comparison with the plain loop


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
    roofline: float | None = None  # bar

    def fit(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return fit_exact(self.head, x, y).weights
        return fit_sgd(self.head, x, y, epochs=self.epochs, batch_size=BATCH)

    def plain(self, x: Tensor, y: Tensor) -> Tensor:
        if self.epochs is None:
            return plain_exact(self.head, x, y, default_tolerance(self.head, self.n))
        return plain_sgd(self.head, x, y, self.epochs, BATCH)


LONG = SoftmaxHead(num_classes=CLASSES, l2_reg=0.01, clip_norm=1)
PAPER = {"num_classes": CLASSES, "clip_norm": 34.854}
CASES = {
    "softmax": Case(
        SoftmaxHead(**PAPER, l2_reg=10, radius=0.6), 1000, 50, 6145, 3, 150, 300, roofline=3
    ),
    "svm": Case(HuberSVMHead(**PAPER, l2_reg=100, radius=0.06), 1000, 50, 6145, 10, 500),
    "exact": Case(SoftmaxHead(**PAPER, l2_reg=10), 1000, 50, 6145, 1.5),
    "one user": Case(LONG, 1, 50_000, 1281, 8, plain_users=1, roofline=4),
}
MEMORY = 4.0  # GiB, bar
BATCH = 20
FAR = 1 << 27  # float32 numbers of an array far beyond the cache: 512 MiB
LOOK = 0.3  # seconds that a rate is looked for


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


def least_seconds(case: Case) -> float:
    """The roofline, by this file's formulas."""
    n, d, k = case.n, case.dim, CLASSES
    if n >= d:
        sweep = 4 * n * d * k
        computing = 4.5 * sweep / gemm_rate(1, 100, d, k, torch.float64)
        computing += 4 * 24 * sweep / 31 / gemm_rate(1, 100, d, k)
        reading = 5 * n * d * 4
    else:
        exact, rounds = case.epochs is None, case.epochs or 14
        computing = 2 * n * n * d / gemm_rate(1, n, d, n, torch.float64 if exact else torch.float32)
        computing += rounds * 2 * n * n * k / gemm_rate(64, k, n if exact else BATCH, n)
        computing += 2 * n * d * k / gemm_rate(1, k, n, d)
        if isinstance(case.head, SoftmaxHead):
            computing += rounds * n * k / exponential_rate()
        reading = (n + k) * d * 4
    return case.users * max(computing, reading / bandwidth())


def shortest(run: Callable[[], object]) -> float:
    """Seconds of the fastest of many runs."""
    found, end = math.inf, time.perf_counter() + LOOK
    while time.perf_counter() < end:
        found = min(found, best(run, 1))
    return found


def gemm_rate(
    users: int, rows: int, inner: int, columns: int, dtype: torch.dtype = torch.float32
) -> float:
    """Flops per second of (rows, inner) @ (inner, columns), as many at once as threads or users."""
    users *= torch.get_num_threads()
    a = torch.rand(users, rows, inner, dtype=dtype)
    b = a.mT if rows == columns else torch.rand(users, inner, columns, dtype=dtype)
    out = torch.empty(users, rows, columns, dtype=dtype)
    return 2 * users * rows * inner * columns / shortest(lambda: torch.bmm(a, b, out=out))


def exponential_rate() -> float:
    """Float32 exponentials per second."""
    values = torch.rand(torch.get_num_threads() << 16)
    out = torch.empty_like(values)
    return len(values) / shortest(lambda: torch.exp(values, out=out))


def bandwidth() -> float:
    """Bytes per second: the best of reading, copying and STREAM's triad."""
    a, b, c = (torch.rand(FAR) for _ in range(3))
    size = FAR * a.itemsize
    reading = size / shortest(a.sum)
    copying = 2 * size / shortest(lambda: a.copy_(b))
    triad = 3 * size / shortest(lambda: torch.add(a, b, alpha=3, out=c))
    return max(reading, copying, triad)


def distance(case: Case, x: Tensor, y: Tensor) -> float:
    """Distance of the plain loop's weights to ours, both solved far below the default tolerance.

    On so many rows that the plain loop, which needs thousands of steps for it, ends in seconds.
    """
    x, y = x[:CHECKED], y[:CHECKED]
    if case.epochs is None:
        tolerance = default_tolerance(case.head, len(y))
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
    per_user, roofline = seconds / case.users, least_seconds(case)
    return {
        "case": name,
        "seconds": seconds,
        "roofline_seconds": roofline,
        "roofline_ratio": seconds / roofline,
        "users_per_second": 1 / per_user,
        "peak_gib": peak,
        "plain_seconds_per_user": min(plain),
        "ratio": min(plain) / per_user,
        "distance": distance(case, x[0], y[0]),
    }


def main(case: str | None = None, write: Path | None = None) -> int:
    """Prints a line for every case, or measures one in this process and prints JSON."""
    if case:
        print(json.dumps(measure(case)))
        return 0
    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, best of {REPEATS}")
    print(
        f"{'case':9} {'seconds':>8} {'bar':>5} {'roofline':>8} {'ratio':>6} {'bar':>4} {'GiB':>5} "
        f"{'plain s/user':>12} {'ratio':>6} {'bar':>4} {'distance':>9}"
    )
    rows = []
    for name, bars in CASES.items():
        command = [sys.executable, __file__, "--case", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        row = json.loads(done.stdout)
        rows.append(row)
        print(
            f"{name:9} {row['seconds']:8.2f} {bars.seconds:5.1f} {row['roofline_seconds']:8.3f} "
            f"{row['roofline_ratio']:6.1f} {bars.roofline or '-':>4} {row['peak_gib']:5.2f} "
            f"{row['plain_seconds_per_user']:12.3f} {row['ratio']:6.0f} "
            f"{bars.ratio or '-':>4} {row['distance']:9.1e}",
            flush=True,
        )
    save(write, {"machine": machine, "cases": rows})
    return int(any(row["distance"] > EQUAL or row["peak_gib"] > MEMORY for row in rows))


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
