"""A million users stream through releases: totals, memory, linear time.

    python tests/benchmarks/bench_scale.py [--users 10000 100000 1000000] [--write FILE]

User i holds 20 generated rows [1/2, s/2 (e_f + e_f+1 + e_f+2 + e_f+3)] of 128 features, with
f = (i + j) mod 128, label (i + j) mod 10 and sign s = ±1 by user, so that class sums and second
moments are counts.

All are released with (1, 10⁻⁵)-differential privacy; the noise is a simulation's, drawn once, and
drawn again here to see the total before it. `discriminant-integers` is what is deployed, every
user's own discrete noise and a secure sum: 100 times fewer users. Every measurement runs in a
process of its own; its peak memory is the operating system's figure.
"""

import math
import multiprocessing
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch
import tyro
from torch import Tensor

from embed import PublicTransform
from pretrain.cli.provenance import provenance
from tests.benchmarks.saving import save
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk
from train_distributed.privacy.float_noise import gaussian

CLASSES, CONSTANT = 10, 0.5
CHUNK_USERS = 1024
METHODS = ("discriminant", "discriminant-integers")
INTEGERS = 100  # times fewer users


@dataclass(frozen=True)
class GeneratedUsers:
    """`count` users whose rows are made when they are asked for: a `Users`."""

    count: int
    rows: int = 20  # of a user
    features: int = 128  # q
    spread: int = 4  # features of a row that are not zero

    @property
    def sizes(self) -> Tensor:
        return torch.full((self.count,), self.rows)

    @property
    def dim(self) -> int:
        return self.features + 1

    @property
    def transform(self) -> PublicTransform:
        reach = math.sqrt(1 + CONSTANT**2)
        return PublicTransform.identity(self.features, clip_norm=reach, constant=CONSTANT)

    @property
    def period(self) -> int:
        """A user's rows depend on its number modulo this, and on its sign."""
        return self.features * CLASSES

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, self.count, CHUNK_USERS):
            users = torch.arange(start, min(start + CHUNK_USERS, self.count))
            place = users[:, None] + torch.arange(self.rows)
            sign = 1 - 2 * (users // self.period % 2).float()[:, None, None]
            x = torch.zeros(len(users), self.rows, self.dim)
            x[..., 0] = CONSTANT
            for shift in range(self.spread):
                feature = 1 + (place + shift)[..., None] % self.features
                x.scatter_(2, feature, (sign * self.spread**-0.5).expand_as(feature))
            yield Chunk(users, x, place % CLASSES, torch.full((len(users),), self.rows))

    def closed_statistics(self) -> tuple[Tensor, Tensor]:
        """(d, K) class sums, how often each feature meets each label, and (q, q) moments."""
        sums = torch.zeros(self.dim, CLASSES, dtype=torch.float64)
        moments = torch.zeros(self.features, self.features, dtype=torch.float64)
        residue = torch.arange(self.period)
        # of the i < count, those with i mod period = residue and an even or odd i // period
        plus, minus = (
            (self.count - residue - odd * self.period + 2 * self.period - 1).clamp(min=0)
            // (2 * self.period)
            for odd in (0, 1)
        )
        shifts, weight = torch.arange(self.spread), self.spread**-0.5
        for j in range(self.rows):
            features = (residue[:, None] + j + shifts) % self.features
            labels = ((residue + j) % CLASSES)[:, None].expand_as(features)
            signed = weight * (plus - minus).double()[:, None].expand_as(features)
            sums.index_put_((1 + features, labels), signed, accumulate=True)
            left, right = features[:, :, None].expand(-1, -1, self.spread), features[:, None, :]
            squares = weight**2 * (plus + minus).double()[:, None, None].expand_as(left)
            moments.index_put_((left, right.expand_as(left)), squares, accumulate=True)
        sums[0] = CONSTANT * self.count * self.rows / CLASSES
        return sums, moments


@dataclass(frozen=True)
class Row:
    """One release."""

    method: str
    users: int
    seconds: float
    peak_gib: float
    error: float | None  # relative, of the total before noise; None: nobody can draw that again
    noise: float  # its root mean square over what it should be


def measure(name: str, count: int) -> tuple[float, float, float | None, float]:
    """All but the first two fields of a `Row`."""
    method, integers, _ = name.partition("-integers")
    users = GeneratedUsers(count)
    built = build_method(method, users.transform, CLASSES, {})
    started = time.perf_counter()
    released = release(
        users,
        built,
        Privacy(1.0, 1e-5),
        transform=users.transform,
        num_classes=CLASSES,
        noise="discrete" if integers else "float",
        generator=None if integers else torch.Generator().manual_seed(count),
    )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sums, moments = users.closed_statistics()
    row, column = torch.triu_indices(users.features, users.features)
    expected = torch.cat([sums.flatten(), moments[row, column]])
    assert released.opened is not None
    std = released.report["local_noise_std"] * math.sqrt(count)
    noise = released.opened - expected * built.statistic.scale
    error = None
    if not integers:
        drawn = gaussian(len(expected), std, torch.Generator().manual_seed(count))
        error = ((noise - drawn).norm() / (expected * built.statistic.scale).norm()).item()
    return seconds, peak, error, (noise.square().mean().sqrt() / std).item()


def main(
    users: tuple[int, ...] = (10_000, 100_000, 1_000_000),
    methods: tuple[str, ...] = METHODS,
    write: Path | None = None,
) -> None:
    """Prints a line for every method and number of users."""
    result, rows = provenance() | {"load": os.getloadavg()[0]}, []
    context = multiprocessing.get_context("spawn")
    print(
        f"{'method':22}{'users':>9}{'seconds':>9}{'us/user':>10}{'peak GiB':>10}{'error':>10}"
        f"{'noise':>8}"
    )
    for method, count in product(methods, users):
        count = max(count // INTEGERS, 2) if method.endswith("-integers") else count
        with context.Pool(1) as pool:
            row = Row(method, count, *pool.apply(measure, (method, count)))
        rows.append(asdict(row))
        error = math.nan if row.error is None else row.error
        print(
            f"{method:22}{count:9}{row.seconds:9.2f}{1e6 * row.seconds / count:10.1f}"
            f"{row.peak_gib:10.2f}{error:10.1e}{row.noise:8.3f}",
            flush=True,
        )
    save(write, result | {"rows": rows})


if __name__ == "__main__":
    tyro.cli(main)
