"""What every statistic promises of itself, tried on the worst rows, for features of any length."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed.one_shot.extra_sums import ClippedGradient, FeatureSum
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Chunk, Statistic, submissions
from train_distributed.one_shot.user_clip import UserClip

K, FEATURES, GRID = 3, 4, 2.0**-12
LENGTHS = [0.3, 1.0, 1.8, 2.5]  # r of features; squares of those above √3 outweigh what they share
ROUNDING = 1 + 1e-9
HEAD: dict[str, Any] = {"l2_reg": 4.0}


def transform_of(reach: float, constant: float = 0.5) -> PublicTransform:
    return PublicTransform.identity(FEATURES, math.hypot(reach, constant), constant)


def named(name: str, **options: Any) -> Callable[[PublicTransform], Statistic]:
    return lambda transform: build_method(name, transform, K, options).statistic


def mapped(transform: PublicTransform) -> Statistic:
    """Rows along other directions, so short a length that nearly all are clipped again."""
    draw = torch.Generator().manual_seed(2)
    normal = torch.randn(FEATURES, FEATURES, generator=draw, dtype=torch.float64)
    centre = torch.zeros(FEATURES, dtype=torch.float64)
    turned = torch.linalg.qr(normal).Q
    along = replace(transform, directions=turned, centre=centre, length=0.3)
    return named("discriminant")(along)


def clipped(transform: PublicTransform) -> Statistic:
    return UserClip(statistic=FeatureSum(transform=transform), norm=0.8 * transform.reach)


def gradient(transform: PublicTransform) -> Statistic:
    weights = torch.linspace(-3, 3, transform.dim * K, dtype=torch.float64)
    return ClippedGradient(weights=weights.view(-1, K), clip_norm=0.2 * transform.clip_norm)


STATISTICS: dict[str, Callable[[PublicTransform], Statistic]] = {
    "first sum": lambda transform: FeatureSum(transform=transform),
    "clipped first sum": clipped,
    "discriminant": named("discriminant"),
    "discriminant without moments": named("discriminant", moments=False),
    "mapped discriminant": mapped,
    "heavy moments": named("discriminant", alpha=1.5),
    "softmax": named("softmax", **HEAD),
    "centred softmax": named("softmax", prior="equal", **HEAD),
    "svm": named("svm", **HEAD),
    "logistic": named("logistic", **HEAD),
    "gradient": gradient,
}
EVERY = pytest.mark.parametrize("name", STATISTICS)
OF_ROWS = pytest.mark.parametrize(
    "name", [name for name, make in STATISTICS.items() if make(transform_of(1.0)).additive]
)
LONG = pytest.mark.parametrize("reach", LENGTHS)


def worst_rows(statistic: Statistic, transform: PublicTransform) -> Tensor:
    """Rows of every length in opposite, orthogonal and slanting directions, and one of zeros.

    As the statistic's own transform maps them.
    """
    one = torch.eye(FEATURES, dtype=torch.float64)
    units = [one[0], one[1], one.sum(0) / 2]
    units += [-unit for unit in units] + [(one[0] + one[3]) / math.sqrt(2)]
    lengths = (0.0, 0.4, 0.7, 1 - 1e-12)
    features = torch.stack([length * transform.reach * u for u in units for length in lengths])
    rows = torch.nn.functional.pad(features, (1, 0), value=transform.constant)
    own, rows = getattr(statistic.unclipped, "transform", None), rows.unique(dim=0)
    return rows if own is None else own.map_rows(rows)


def user_with(row: Tensor, label: int, others: Tensor) -> Chunk:
    x, y = torch.cat([row[None], others])[None], torch.tensor([[label] + [0] * len(others)])
    return Chunk(torch.zeros(1, dtype=torch.int64), x, y, torch.tensor([len(others) + 1]))


def sent(statistic: Statistic, rows: Tensor) -> Tensor:
    """(records, D) scaled submissions for each record that a user may hold beside two others."""
    users = [user_with(row, label, rows[1:3]) for row in rows for label in (0, 1)]
    return torch.cat([submissions(statistic, user, None) for user in users])


def all_of(rows: Tensor, draw: torch.Generator) -> Chunk:
    """One user with all of these rows."""
    y = torch.randint(K, (1, len(rows)), generator=draw)
    return Chunk(torch.zeros(1, dtype=torch.int64), rows[None], y, torch.tensor([len(rows)]))


@LONG
@EVERY
def test_no_replaced_record_moves_a_submission_further(name: str, reach: float) -> None:
    transform = transform_of(reach)
    statistic = STATISTICS[name](transform)
    made = sent(statistic, worst_rows(statistic, transform))
    moved = float(torch.cdist(made, made).max()) / math.sqrt(statistic.compositions)
    bound = statistic.record_sensitivity(torch.tensor([3]))
    assert moved <= bound * ROUNDING
    assert moved >= (0.999 if statistic.additive else 0.2) * bound


@LONG
@OF_ROWS
def test_no_record_that_is_taken_out_moves_a_sum_further(name: str, reach: float) -> None:
    transform = transform_of(reach)
    statistic = STATISTICS[name](transform)
    rows = worst_rows(statistic, transform)
    without = submissions(statistic, user_with(0 * rows[0], 0, rows[1:3]), None)
    moved = float((sent(statistic, rows) - without).norm(dim=1).max())
    bound = statistic.zero_out_sensitivity(torch.tensor([3]))
    assert 0.999 * bound <= moved <= bound * ROUNDING


@LONG
@EVERY
def test_a_submission_has_the_stated_shape_and_bounds(name: str, reach: float) -> None:
    transform = transform_of(reach)
    statistic = STATISTICS[name](transform)
    made = sent(statistic, worst_rows(statistic, transform))
    assert made.shape[1] == statistic.dimension
    assert made.dtype == torch.float64
    assert float(made.abs().max()) <= statistic.entry_bound(3) * ROUNDING
    assert float(made.norm(dim=1).max()) <= statistic.norm_bounds(torch.tensor([3])) * ROUNDING


@LONG
@OF_ROWS
def test_sums_of_rows_on_a_grid_are_whole_steps_in_any_order(name: str, reach: float) -> None:
    transform, draw = transform_of(reach), torch.Generator().manual_seed(0)
    statistic = STATISTICS[name](transform)
    chunk = all_of(worst_rows(statistic, transform), draw)
    first = submissions(statistic, chunk, GRID)
    for _ in range(3):
        assert torch.equal(submissions(statistic, chunk.shuffled(draw), GRID), first)
    assert statistic.grid_powers is not None
    steps = GRID ** statistic.grid_powers.double() * statistic.scale
    whole = first / steps
    torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-6)


@LONG
@EVERY
def test_no_order_of_rows_moves_a_submission_by_more_than_rounding(name: str, reach: float) -> None:
    transform, draw = transform_of(reach), torch.Generator().manual_seed(1)
    statistic = STATISTICS[name](transform)
    chunk = all_of(worst_rows(statistic, transform), draw)
    made = torch.cat([submissions(statistic, chunk.shuffled(draw), None) for _ in range(4)])
    spread = float(torch.cdist(made, made).max())
    assert spread <= 1e-5 * statistic.record_sensitivity(chunk.counts)
