"""Releases of very many users (`users`), and draws of noise beside OpenDP's (`noise`)."""

import math
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from pretrain.cli.provenance import provenance
from tests.benchmarks.common import Table, alone, command_line, save
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.privacy.float_noise import gaussian

CLASSES, CONSTANT = 10, 0.5
ROWS, FEATURES, SPREAD = 20, 128, 4  # of a user; q; features of a row that are not zero
PERIOD = FEATURES * CLASSES  # a user's rows depend on its number modulo this, and on its sign
CHUNK_USERS = 1024
METHODS = ("discriminant", "discriminant-integers")
INTEGERS = 100  # times fewer users


@dataclass(frozen=True)
class GeneratedUsers:
    """`count` users whose rows are made when they are asked for: a `Users`.

    User i holds rows [1/2, s/2 (e_f + e_f+1 + e_f+2 + e_f+3)], with f = (i + j) mod 128, label
    (i + j) mod 10 and sign s = ±1 by user, so that class sums and second moments are counts.
    """

    count: int

    @property
    def sizes(self) -> Tensor:
        return torch.full((self.count,), ROWS)

    @property
    def dim(self) -> int:
        return FEATURES + 1

    @property
    def transform(self) -> PublicTransform:
        reach = math.sqrt(1 + CONSTANT**2)
        return PublicTransform.identity(FEATURES, clip_norm=reach, constant=CONSTANT)

    def chunks(self) -> Iterator[Chunk]:
        for start in range(0, self.count, CHUNK_USERS):
            users = torch.arange(start, min(start + CHUNK_USERS, self.count))
            place = users[:, None] + torch.arange(ROWS)
            sign = 1 - 2 * (users // PERIOD % 2).float()[:, None, None]
            x = torch.zeros(len(users), ROWS, self.dim)
            x[..., 0] = CONSTANT
            for shift in range(SPREAD):
                feature = 1 + (place + shift)[..., None] % FEATURES
                x.scatter_(2, feature, (sign * SPREAD**-0.5).expand_as(feature))
            yield Chunk(users, x, place % CLASSES, torch.full((len(users),), ROWS))

    def closed_statistics(self) -> tuple[Tensor, Tensor]:
        """(d, K) class sums, how often each feature meets each label, and (q, q) moments."""
        sums = torch.zeros(self.dim, CLASSES, dtype=torch.float64)
        moments = torch.zeros(FEATURES, FEATURES, dtype=torch.float64)
        residue = torch.arange(PERIOD)
        # of the i < count, those with i mod period = residue and an even or odd i // period
        plus, minus = (
            (self.count - residue - odd * PERIOD + 2 * PERIOD - 1).clamp(min=0) // (2 * PERIOD)
            for odd in (0, 1)
        )
        shifts, weight = torch.arange(SPREAD), SPREAD**-0.5
        for j in range(ROWS):
            features = (residue[:, None] + j + shifts) % FEATURES
            labels = ((residue + j) % CLASSES)[:, None].expand_as(features)
            signed = weight * (plus - minus).double()[:, None].expand_as(features)
            sums.index_put_((1 + features, labels), signed, accumulate=True)
            left, right = features[:, :, None].expand(-1, -1, SPREAD), features[:, None, :]
            squares = weight**2 * (plus + minus).double()[:, None, None].expand_as(left)
            moments.index_put_((left, right.expand_as(left)), squares, accumulate=True)
        sums[0] = CONSTANT * self.count * ROWS / CLASSES
        return sums, moments


def measure(name: str, count: int) -> dict[str, Any]:
    """One release: seconds, peak of memory, relative error of the total before noise, and noise.

    The noise is its root mean square over what it should be. There is no error where users draw
    their own noise, which nobody can draw again.
    """
    method, integers, _ = name.partition("-integers")
    users = GeneratedUsers(count)
    built = build_method(method, users.transform, CLASSES, {})
    given: dict[str, Any] = {"transform": users.transform, "num_classes": CLASSES}
    given |= {"noise": "discrete" if integers else "float"}
    given["generator"] = None if integers else torch.Generator().manual_seed(count)
    started = time.perf_counter()
    released = release(users, built, Privacy(1.0, 1e-5), **given)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    sums, moments = users.closed_statistics()
    row, column = torch.triu_indices(FEATURES, FEATURES)
    expected = torch.cat([sums.flatten(), moments[row, column]])
    assert released.opened is not None
    std = released.report["local_noise_std"] * math.sqrt(count)
    noise = released.opened - expected * built.statistic.scale
    found = {"method": name, "users": count, "seconds": seconds, "peak_gib": peak, "error": None}
    if not integers:
        drawn = gaussian(len(expected), std, torch.Generator().manual_seed(count))
        found["error"] = ((noise - drawn).norm() / (expected * built.statistic.scale).norm()).item()
    return found | {"noise": (noise.square().mean().sqrt() / std).item()}


def stream(
    users: tuple[int, ...] = (10_000, 100_000, 1_000_000), write: Path | None = None
) -> None:
    """A million users stream through releases: totals, memory, linear time.

    All are released with (1, 10⁻⁵)-differential privacy; the noise is a simulation's, drawn once,
    and drawn again here to see the total before it. `discriminant-integers` is what is deployed,
    every user's own discrete noise and a secure sum: 100 times fewer users. Every measurement runs
    in a process of its own; its peak memory is the operating system's figure.
    """
    result, table = provenance() | {"load": os.getloadavg()[0]}, Table()
    for method, count in product(METHODS, users):
        count = max(count // INTEGERS, 2) if method.endswith("-integers") else count
        table.add(alone(measure, method, count))
    save(write, result | {"rows": table.rows})


STDS = [0.3, 1.0, 3.7, 40.0, 2.0**10, 1.7 * 2**20, 2.0**40 / 3, 2.0**45, 2.0**53]
COUNT, ROUNDS, BAR = 61_450, 3, 10.0


def opendp_sampler(std: float) -> Callable[[], object]:
    """OpenDP's exact sampler (Canonne, Kamath, Steinke 2020), as a release would call it."""
    dp: Any = import_module("opendp.prelude")
    dp.enable_features("contrib")
    space, zeros = (dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="f64")), [0] * COUNT
    return lambda: dp.m.make_gaussian(*space, scale=std)(zeros)


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


def noise(write: Path | None = None) -> int:
    """Nanoseconds a draw of discrete Gaussian noise, beside OpenDP's exact sampler.

    At every standard deviation both take turns at 61,450 numbers (6,145 x 10, what a user submits);
    the best of their turns counts. Exit code 1 if OpenDP takes less than ten times as long.
    """
    table = Table()
    for std in STDS:
        ours, theirs = nanoseconds(std)
        table.add({"std": std, "ns": ours, "opendp_ns": theirs})
    versions = {name: version(name) for name in ("numpy", "opendp")}
    save(write, {"machine": platform.machine(), **versions, "rows": table.rows})
    return int(min(row["opendp_ns"] / row["ns"] for row in table.rows) < BAR)


if __name__ == "__main__":
    command_line(users=stream, noise=noise)
