"""Many releases from one training: what is the same for several ε and settings is computed once."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heads import Head, fit_exact
from heads.projection import ball_scale
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.extra_sums import ClippedGradient
from train_distributed.one_shot.method import Method, OpenedSum, ReleaseState, after_sums
from train_distributed.one_shot.statistic import CHUNK, Chunk, Statistic
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy

BLOCK = 1 << 14  # rows of a gradient at a time
CLIP = "user_clip"  # the option with which sums of statistics know who holds which rows
# Options of an exact head that its training does not see.
TRAINED = ("radius", "bound", "prior", CLIP)


@dataclass(frozen=True)
class RowsInMemory:
    """The training rows of a set, transformed once: for many passes over the same users."""

    x: Tensor  # (N, d)
    y: Tensor  # (N,) int64
    partition: Partition

    @property
    def sizes(self) -> Tensor:
        """(users,) int64: the number of rows n_i that each user holds."""
        return self.partition.counts

    def chunks(self) -> Iterator[Chunk]:
        """Users of similar size together."""
        for bucket in self.partition.buckets(max(1, CHUNK // self.x.shape[1])):
            yield Chunk(bucket.users, self.x[bucket.rows], self.y[bucket.rows], bucket.counts)

    def together(self) -> Chunk:
        """All rows as one user's, in the order of the set: sums of rows know no partition."""
        rows = self.partition.order.sort().values
        whole = len(rows) == len(self.x)
        x, y = (self.x, self.y) if whole else (self.x[rows], self.y[rows])
        return Chunk(torch.zeros(1, dtype=torch.int64), x[None], y[None], torch.tensor([len(y)]))


def simulate(
    users: RowsInMemory, method: Method, promise: Privacy, generator: torch.Generator
) -> ReleaseState:
    """One simulated release, after all of its sums; noise is float and seeded."""

    def draw(number: int, dimension: int) -> Tensor:
        return torch.randn(dimension, generator=generator, dtype=torch.float64)

    return released(method, None, users, users.sizes, promise, draw)


def released(
    method: Method,
    total: Tensor | None,
    held: RowsInMemory,
    sizes: Tensor,
    promise: Privacy,
    draw: Callable[[int, int], Tensor],
) -> ReleaseState:
    """One release, after all of its sums.

    All of them are over the raw rows held, scaled to those of the users of these (users,) sizes,
    whom those held stand for. `total` is the unscaled first one, where it is known. `draw(number,
    dimension)` gives as many draws from N(0, 1) for the sum of that number.
    """
    rows = int(sizes.sum())
    scale = rows / int(held.sizes.sum())
    plan = Plan.of(method, sizes, promise, discrete=False)
    stds = [each.mechanism.noise_std(len(sizes)) for each in plan.sums]
    mapped: list[RowsInMemory] = []  # for all rounds of gradients

    def summed(number: int, state: ReleaseState) -> OpenedSum:
        statistic, found = state.statistic, total if number == 0 else None
        if found is None:
            if state.descent is None or not mapped:
                mapped[:] = [replace(held, x=state.mapped(held.x))]
            found = _sum(mapped[0], statistic)
        std, noise = stds[number], draw(number, statistic.dimension)
        return scale * statistic.scale * found + std * noise, rows, std

    return after_sums(ReleaseState(method), range(len(stds)), summed)


def _sum(held: RowsInMemory, statistic: Statistic) -> Tensor:
    """(D,) unscaled sum of the users' submissions."""
    if isinstance(statistic, ClippedGradient):
        return _whole(held, statistic)
    return totals(held, [statistic])[0]


def _whole(held: RowsInMemory, gradient: ClippedGradient) -> Tensor:
    """(D,) sum over all rows, some at a time: it knows no partition."""
    all_rows = held.together()
    total = torch.zeros(gradient.dimension, dtype=torch.float64)
    for x, y in zip(all_rows.x[0].split(BLOCK), all_rows.y[0].split(BLOCK), strict=True):
        total += gradient.submit(Chunk(all_rows.users, x[None], y[None], torch.tensor([len(y)])))[0]
    return total


def totals(users: RowsInMemory, statistics: Sequence[Statistic]) -> list[Tensor]:
    """(D,) float64 unscaled sums of statistics that one training serves, without noise.

    These are sums over rows of one kind, or exact heads that differ in radius and bound only,
    either with a users' clip of whatever norm or without; or a single statistic.
    """
    first = statistics[0].unclipped
    if isinstance(first, TrainedHeads) and first.solver == "exact":
        return _averages(users, statistics, first.without_radius)
    if first.additive and all(each.additive for each in statistics):
        return [first.submit(users.together())[0]] * len(statistics)
    sums = [torch.zeros(each.dimension, dtype=torch.float64) for each in statistics]
    for chunk in users.chunks():
        shared = first.submit(chunk) if first.additive else None
        for total, each in zip(sums, statistics, strict=True):
            if shared is None:
                total += each.submit(chunk).sum(0)
            else:
                total += each.clipped_(shared.clone(), chunk.counts).sum(0)
    return sums


def _averages(users: RowsInMemory, statistics: Sequence[Statistic], free: Head) -> list[Tensor]:
    """Σ Π_C(n_i Π_R(W_i)) for every radius and users' clip from one minimiser per user."""
    sums = [torch.zeros(each.dimension, dtype=torch.float64) for each in statistics]
    for chunk in users.chunks():
        weights = fit_exact(free, chunk.x, chunk.y, counts=chunk.counts).weights.double()
        norms = torch.linalg.vector_norm(weights, dim=free.norm_dims, keepdim=True)
        for total, each in zip(sums, statistics, strict=True):
            own = each.unclipped
            assert isinstance(own, TrainedHeads)
            factor = chunk.counts[:, None, None].double()
            if own.head.radius is not None:
                factor = factor * ball_scale(norms, own.head.radius)
            sent = own.with_features((weights * factor).flatten(1), chunk)
            total += each.clipped_(sent, chunk.counts).sum(0)
    return sums
