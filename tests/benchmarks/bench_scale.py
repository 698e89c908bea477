"""A million users stream through class sums and blind averaging: totals, memory, linear time.

    python tests/benchmarks/bench_scale.py [--users 10000 100000 1000000]

User i holds 50 generated rows x_j = [1/2, s e_f] with f = (i + j) mod 63, label (i + j) mod 10 and
sign s = ±1 by user. Class sums are counts. As its features are orthonormal and its labels balanced,
a user's softmax minimiser is W = Σ_j x_j A_jᵀ where A_j is t for the row's label and -t/9 for the
others, and g = 10 t/9 solves 50 Λ g (e^g + 9) = 10. Every measurement runs in a process of its own;
its peak memory is the operating system's figure.
"""

import argparse
import math
import multiprocessing
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from embed import PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.blind_averaging import BlindAveraging
from train_distributed.one_shot.class_sums import ClassSums
from train_distributed.one_shot.methods import build_method
from train_distributed.one_shot.users import Chunk

ROWS, FEATURES, CLASSES, CONSTANT, L2_REG = 50, 63, 10, 0.5, 1.0
CHUNK_USERS = 1024
PERIOD = FEATURES * CLASSES  # a user's rows depend on its number modulo this, and on its sign
TRANSFORM = PublicTransform.identity(
    FEATURES, clip_norm=math.sqrt(1 + CONSTANT**2), constant=CONSTANT
)


@dataclass(frozen=True)
class GeneratedUsers:
    """`count` users whose rows are made when they are asked for."""

    count: int

    @property
    def sizes(self) -> Tensor:
        return torch.full((self.count,), ROWS)

    @property
    def dim(self) -> int:
        return FEATURES + 1

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, self.count, CHUNK_USERS):
            users = torch.arange(start, min(start + CHUNK_USERS, self.count))
            place = users[:, None] + torch.arange(ROWS)
            sign = (1 - 2 * (users // PERIOD % 2)).float()[:, None, None].expand(-1, ROWS, 1)
            x = torch.zeros(len(users), ROWS, FEATURES + 1)
            x[..., 0] = CONSTANT
            x.scatter_(2, 1 + (place % FEATURES)[..., None], sign)
            yield Chunk(users, x, place % CLASSES, torch.full((len(users),), ROWS))


def closed_class_sums(count: int) -> Tensor:
    """(d, K): how often each feature meets each label, counted with signs by arithmetic."""
    total = torch.zeros(FEATURES + 1, CLASSES, dtype=torch.float64)
    residue = torch.arange(PERIOD)
    # of the i < count, those with i mod PERIOD = residue and an even or odd i // PERIOD
    plus, minus = (
        (count - residue - odd * PERIOD + 2 * PERIOD - 1).clamp(min=0) // (2 * PERIOD)
        for odd in (0, 1)
    )
    for j in range(ROWS):
        feature, label = (residue + j) % FEATURES, (residue + j) % CLASSES
        total.index_put_((1 + feature, label), (plus - minus).double(), accumulate=True)
    total[0] = CONSTANT * count * ROWS / CLASSES
    return total


def closed_heads(count: int) -> Tensor:
    """(d, K): Σ_i n W_i from the class sums and one scalar root."""
    others = CLASSES - 1

    def slack(g: float) -> float:
        return ROWS * L2_REG * g * (math.exp(g) + others) - CLASSES

    gap = float(brentq(slack, 0, 100, xtol=1e-15))  # pyright: ignore[reportArgumentType]
    t = others / CLASSES * gap
    rows = torch.full((CLASSES, CLASSES), -t / others, dtype=torch.float64).fill_diagonal_(t)
    return ROWS * closed_class_sums(count) @ rows


class TotalOfClassSums(ClassSums):
    """Shows the bare total instead of a classifier."""

    def classifier(self, total: Tensor, rows: int, noise_std: float) -> Tensor:
        return total.unflatten(0, (FEATURES + 1, CLASSES))


class TotalOfHeads(BlindAveraging):
    """Shows the bare total instead of the average."""

    def classifier(self, total: Tensor, rows: int, noise_std: Tensor | float) -> Tensor:
        return total.unflatten(0, (FEATURES + 1, CLASSES))


def measure(method: str, count: int) -> tuple[float, float, float]:
    """(seconds, peak GiB, relative error of the total before noise) of one pass."""
    if method == "class-sums":
        built = TotalOfClassSums(num_classes=CLASSES, transform=TRANSFORM)
        expected = closed_class_sums(count)
    else:
        usual = build_method("softmax", TRANSFORM, CLASSES, {"l2_reg": L2_REG})
        assert isinstance(usual, BlindAveraging)
        built = TotalOfHeads(head=usual.head, dim=usual.dim)
        expected = closed_heads(count)
    started = time.perf_counter()
    released = release(
        GeneratedUsers(count),
        built,
        Privacy(math.inf, 1e-5),
        transform=TRANSFORM,
        num_classes=CLASSES,
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    distance = (released.weights - expected).norm() / expected.norm()
    return seconds, peak, distance.item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--methods", nargs="+", default=["class-sums", "softmax"])
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    print(f"{'method':12}{'users':>10}{'seconds':>10}{'us/user':>10}{'peak GiB':>10}{'error':>10}")
    for method in options.methods:
        for count in options.users:
            with context.Pool(1) as pool:
                seconds, peak, error = pool.apply(measure, (method, count))
            each = 1e6 * seconds / count
            print(f"{method:12}{count:10}{seconds:10.2f}{each:10.1f}{peak:10.2f}{error:10.1e}")


if __name__ == "__main__":
    main()
