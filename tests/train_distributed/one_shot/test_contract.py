"""What every statistic promises, on the worst rows; a row of zeros stands for one taken out."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from embed import PublicTransform
from tests.kernels import ByPlace
from tests.train_distributed.one_shot.builders import one_user, several
from train_distributed import Privacy
from train_distributed.one_shot.extra_sums import ClippedGradient, FeatureSum
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.one_shot.source import check_stream
from train_distributed.one_shot.statistic import Chunk, Statistic, submissions
from train_distributed.one_shot.user_clip import UserClip
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian

K, FEATURES, GRID, BESIDE, WHOLE = 3, 4, 2.0**-12, 2, 5
LENGTHS = [0.3, 1.0, 2.5]  # r of features; squares of those above √3 outweigh what they share
ROUNDING = 1 + 1e-11
HEAD: dict[str, Any] = {"l2_reg": 4.0}
SGD: dict[str, Any] = {**HEAD, "solver": "sgd", "epochs": 3, "batch_size": 2}

Builder = Callable[[PublicTransform], Statistic]


def transform_of(reach: float, constant: float = 0.5, features: int = FEATURES) -> PublicTransform:
    return PublicTransform.identity(features, math.hypot(reach, constant), constant)


def named(name: str, classes: int = K, **options: Any) -> Builder:
    return lambda transform: build_method(name, transform, classes, options).statistic


def clipped(share: float, name: str, **options: Any) -> Builder:
    """Users' vectors are clipped to a multiple of the length of one row."""

    def build(transform: PublicTransform) -> Statistic:
        reach = named(name, **options)(transform).zero_out_sensitivity(torch.tensor([WHOLE]))
        return named(name, **options, user_clip=share * reach)(transform)

    return build


def mapped(name: str, transform: PublicTransform) -> Statistic:
    """Rows along other directions, so short a length that nearly all are clipped again."""
    draw = torch.Generator().manual_seed(2)
    normal = torch.randn(FEATURES, FEATURES, generator=draw, dtype=torch.float64)
    centre = torch.zeros(FEATURES, dtype=torch.float64)
    turned = torch.linalg.qr(normal).Q
    along = replace(transform, directions=turned, centre=centre, length=0.3)
    return named(name)(along)


def gradient(transform: PublicTransform, size: float, classes: int = K) -> Statistic:
    weights = torch.linspace(-size, size, transform.dim * classes, dtype=torch.float64)
    weights = weights.view(-1, classes)
    return ClippedGradient(weights=weights, clip_norm=0.2 * transform.clip_norm)


@dataclass(frozen=True)
class Case:
    """A statistic, and the shares of its stated movements that the worst rows must reach."""

    build: Builder
    replaced: float = 0.999  # by one record
    removed: float = 0.999  # by one record
    user: float | None = None  # by all records of a user; None: as `replaced`
    short: float | None = None  # as `replaced`, of features shorter than the constant; None: alike

    def reached(self, reach: float, *, by_user: bool = False) -> float:
        share = self.replaced if self.user is None or not by_user else self.user
        return share if self.short is None or reach > 0.5 else self.short


def heads(name: str, **options: Any) -> Case:
    return Case(named(name, **{**HEAD, **options}), 0.3, 0.35, 0.3)


def in_a_ball(name: str, **options: Any) -> Case:
    """Its bound on one record does not know the radius."""
    return Case(named(name, **{**HEAD, **options}, radius=0.05), 0.09, 0.13, 0.8)


def clipped_heads(name: str, **options: Any) -> Case:
    return Case(clipped(0.4, name, **HEAD, **options), 0.3, 0.25, 0.8)


def findings(k: int, most: float, **options: Any) -> Case:
    case = named("findings", k, most_findings=most, **options)
    return Case(case, 0.96 if "alpha" in options else 0.999, 0.99, short=0.7)


STATISTICS: dict[str, Case] = {
    "first sum": Case(lambda transform: FeatureSum(transform=transform)),
    "clipped first sum": Case(
        lambda t: UserClip(statistic=FeatureSum(transform=t), norm=0.8 * t.reach), 0.5, 0.4, 0.99
    ),
    "discriminant": Case(named("discriminant")),
    "discriminant without moments": Case(named("discriminant", moments=False)),
    "mapped discriminant": Case(partial(mapped, "discriminant")),
    "mapped findings": Case(partial(mapped, "findings"), removed=0.99, short=0.7),
    "heavy moments": Case(named("discriminant", alpha=1.5)),
    "light moments": Case(named("discriminant", alpha=0.1)),
    "clipped discriminant": Case(clipped(1.5, "discriminant", moments=False), 0.7, 0.9, 0.8),
    "softmax": heads("softmax"),
    "softmax in a ball": in_a_ball("softmax"),
    "softmax by SGD": heads("softmax", **SGD),
    "centred softmax": heads("softmax", prior="equal"),
    "clipped centred softmax": clipped_heads("softmax", prior="equal"),
    "svm": heads("svm"),
    "svm in a ball by SGD": in_a_ball("svm", **SGD),
    "clipped svm": clipped_heads("svm"),
    "svm of findings": heads("svm", findings=True),
    "logistic": heads("logistic"),
    "centred logistic by SGD": heads("logistic", prior="equal", **SGD),
    # three classes: with two, the same row with the other label attains the bound
    "gradient": Case(partial(gradient, size=3), 0.84),
    "gradient at zero": Case(partial(gradient, size=0), 0.84),
    "gradient at huge weights": Case(partial(gradient, size=1e100), 0.84),
    "gradient of 2 classes": Case(partial(gradient, size=0, classes=2)),
    "a finding of 2": findings(2, 1),
    "2 findings of 5": findings(5, 2),
    "3 findings of 10, or unknown": findings(10, 3, unknown="ask"),
    "2.5 findings of 4, heavy moments": findings(4, 2.5, alpha=3.0),
    "9 findings of 3, light moments": findings(3, 9, alpha=0.1, unknown="ask"),
    "clipped findings": Case(clipped(1.5, "findings", moments=False), 0.65, 0.7, 0.8),
}
EVERY = pytest.mark.parametrize("name", STATISTICS)
OF_ROWS = pytest.mark.parametrize(
    "name", [name for name, case in STATISTICS.items() if case.build(transform_of(1.0)).additive]
)
LONG = pytest.mark.parametrize("reach", LENGTHS)


def worst_rows(statistic: Statistic, transform: PublicTransform) -> Tensor:
    """Of all lengths and directions, and of zeros, as the statistic's own transform maps them."""
    one = torch.eye(FEATURES, dtype=torch.float64)
    units = [one[0], one[1], one.sum(0) / 2]
    units += [-unit for unit in units] + [(one[0] + one[3]) / math.sqrt(2)]
    lengths = (0.0, 0.4, 0.7, 1 - 1e-12)
    features = [length * transform.reach * u for u in units for length in lengths]
    if statistic.additive:  # every angle beside the first
        angles = torch.linspace(0, math.pi, 49, dtype=torch.float64)
        turned = angles.cos()[:, None] * one[0] + angles.sin()[:, None] * one[1]
        features += list((1 - 1e-12) * transform.reach * turned)
    rows = pad(torch.stack(features), (1, 0), value=transform.constant).unique(dim=0)
    own = getattr(statistic.unclipped, "transform", None)
    return rows if own is None else own.map_rows(rows)


@dataclass(frozen=True)
class Attack:
    """A statistic of rows of this transform, and all records that a user may hold."""

    case: Case
    transform: PublicTransform
    statistic: Statistic
    rows: Tensor  # (m, d)
    targets: Tensor  # (t,) or (t, K)

    def users(self, rows: Tensor, beside: int = BESIDE, copies: int = 1) -> Chunk:
        """A user for each of these rows with each target: so often, beside some rows of others."""
        own = rows.repeat_interleave(len(self.targets), 0)[:, None].expand(-1, copies, -1)
        y = self.targets.repeat(len(rows), *[1] * (self.targets.ndim - 1))[:, None]
        others = self.rows[1 : 1 + beside].expand(len(own), -1, -1)
        same = self.targets[:1].expand(len(own), beside, *self.targets.shape[1:])
        y = torch.cat([y.expand(-1, copies, *y.shape[2:]), same], 1)
        counts = torch.full((len(own),), copies + beside)
        return Chunk(torch.arange(len(own)), torch.cat([own, others], 1), y, counts)

    @property
    def one(self) -> Chunk:
        """One user with all of these rows."""
        y = self.targets[torch.arange(len(self.rows)) % len(self.targets)]
        return one_user(self.rows, y)

    def sent(self, chunk: Chunk) -> Tensor:
        """(u, D) scaled submissions."""
        return submissions(self.statistic, chunk, None)

    def farthest(self, sent: Tensor) -> float:
        """Largest movement of one of C equal parts between any two."""
        return float(torch.cdist(sent, sent).max()) / math.sqrt(self.statistic.compositions)


@cache
def attack(name: str, reach: float) -> Attack:
    case, transform = STATISTICS[name], transform_of(reach)
    statistic = case.build(transform)
    own: Any = statistic.unclipped
    has_findings = getattr(own, "findings", False) or hasattr(own, "most")
    targets = several(own.num_classes) if has_findings else torch.tensor([0, 1])
    return Attack(case, transform, statistic, worst_rows(statistic, transform), targets)


@LONG
@EVERY
def test_no_record_moves_a_submission_further(name: str, reach: float) -> None:
    """Whether another one takes its place, or it is taken out."""
    tried, size = attack(name, reach), torch.tensor([1 + BESIDE])
    sent = tried.sent(tried.users(tried.rows))
    bound = tried.statistic.record_sensitivity(size)
    assert tried.case.reached(reach) * bound <= tried.farthest(sent) <= bound * ROUNDING
    without = tried.sent(tried.users(0 * tried.rows[:1]))[:1]
    moved = float((sent - without).norm(dim=1).max()) / math.sqrt(tried.statistic.compositions)
    removal = tried.statistic.zero_out_sensitivity(size)
    assert tried.case.removed * removal <= moved <= removal * ROUNDING
    assert removal <= bound * ROUNDING


@LONG
@EVERY
def test_no_user_moves_a_sum_further_than_all_of_its_records(name: str, reach: float) -> None:
    """Its rows, all alike, become others or are taken out; what it sends keeps its bounds."""
    tried, size = attack(name, reach), torch.tensor([WHOLE])
    statistic = tried.statistic
    made = tried.sent(tried.users(tried.rows, beside=0, copies=WHOLE))
    bound = float(statistic.user_sensitivity(size)[0])
    share = tried.case.reached(reach, by_user=True)
    assert share * bound <= tried.farthest(made) <= bound * ROUNDING
    gone = float(statistic.user_zero_out(size)[0]) * math.sqrt(statistic.compositions)
    assert float(made.norm(dim=1).max()) <= gone * ROUNDING
    assert gone == float(statistic.norm_bounds(size)[0])
    assert gone <= bound * math.sqrt(statistic.compositions)
    assert float(made.abs().max()) <= statistic.entry_bound(WHOLE) * ROUNDING
    assert made.shape[1] == statistic.dimension
    assert made.dtype == torch.float64


@pytest.mark.parametrize("unit", ["record", "user"])
@pytest.mark.parametrize("group", [1, 2])
@EVERY
def test_integers_of_neighbours_are_no_further_apart_than_is_charged(name, unit, group):
    """As many users turn round as the group has units, between the two farthest submissions."""
    tried = attack(name, 1.0)
    rows = tried.rows[tried.rows.norm(dim=1) > 0.999 * tried.rows.norm(dim=1).max()][::3]
    rows = torch.cat([rows, pad(-rows[:, 1:], (1, 0), value=float(rows[0, 0]))])
    one_record = unit == "record"
    chunk = tried.users(rows, BESIDE if one_record else 0, 1 if one_record else WHOLE)
    sizes = torch.full((4,), int(chunk.counts[0]))
    privacy = Privacy(1.0, 1e-5, unit=unit, group_size=group)
    guarantee = Guarantee.of(sizes, tried.statistic, privacy)
    mechanism = DiscreteGaussian.calibrated(tried.statistic, guarantee, sizes)
    sent = submissions(tried.statistic, chunk, mechanism.grid)
    far = torch.cdist(sent, sent)
    pair = divmod(int(far.argmax()), len(far))
    words = [mechanism.encode(sent[place].numpy()).view(np.int64) for place in pair]
    moved = group * np.linalg.norm((words[0] - words[1]) * mechanism.step)
    share = tried.case.reached(1.0, by_user=not one_record)
    assert 0.95 * share * guarantee.joint_sensitivity <= moved
    assert moved <= mechanism.charged_sensitivity * (1 + 1e-12)


@LONG
@OF_ROWS
def test_sums_of_rows_on_a_grid_are_whole_steps_in_any_order(name: str, reach: float) -> None:
    tried, draw = attack(name, reach), torch.Generator().manual_seed(0)
    statistic, chunk = tried.statistic, tried.one
    first = submissions(statistic, chunk, GRID)
    for _ in range(3):
        assert torch.equal(submissions(statistic, chunk.shuffled(draw), GRID), first)
    assert statistic.grid_powers is not None
    steps = GRID ** statistic.grid_powers.double() * statistic.scale
    whole = first / steps
    torch.testing.assert_close(whole, whole.round(), rtol=0, atol=1e-6)


@LONG
@pytest.mark.parametrize("name", [name for name in STATISTICS if "SGD" not in name])
def test_neither_order_nor_place_of_rows_moves_a_submission_by_more_than_rounding(name, reach):
    """Where products round a row by its place, too."""
    tried, draw = attack(name, reach), torch.Generator().manual_seed(1)
    chunk = tried.one
    made = [tried.sent(chunk.shuffled(draw)) for _ in range(3)]
    with ByPlace():
        made.append(tried.sent(chunk.shuffled(draw)))
    spread = tried.farthest(torch.cat(made))
    assert spread <= 1e-5 * tried.statistic.record_sensitivity(chunk.counts)


@LONG
@EVERY
def test_padding_adds_nothing_and_pooled_rows_their_sum(name: str, reach: float) -> None:
    tried, users = attack(name, reach), 3
    every, n = tried.one.shuffled(torch.Generator().manual_seed(2)), len(tried.rows) // users
    x, y = (of[0, : users * n].unflatten(0, (users, n)) for of in (every.x, every.y))
    counts = torch.tensor([n, n - 3, n - 1])
    padded = Chunk(torch.arange(users), x, y, counts)
    filler = torch.full_like(x, torch.nan) if tried.statistic.additive else x.flip(1)
    others = replace(padded, x=x.where(padded.own[..., None], filler))
    made = tried.sent(padded)
    tolerance = 1e-9 if tried.statistic.additive else 1e-3  # of solvers
    tolerance *= tried.statistic.record_sensitivity(counts)
    torch.testing.assert_close(tried.sent(others), made, rtol=0, atol=tolerance)
    for user, count in enumerate(counts.tolist()):
        alone = padded.select(torch.arange(users) == user)
        alone = replace(alone, x=alone.x[:, :count], y=alone.y[:, :count])
        torch.testing.assert_close(tried.sent(alone)[0], made[user], rtol=0, atol=tolerance)
    if tried.statistic.additive:
        torch.testing.assert_close(tried.sent(padded.pooled())[0], made.sum(0))


@pytest.mark.parametrize(
    "name", [name for name in STATISTICS if not {"first", "mapped", "gradient"} & set(name.split())]
)
def test_numbers_are_found_again_among_those_of_more_features(name: str) -> None:
    """Directions of length 0 are sent, and left out of what was summed."""
    tried = attack(name, 1.0)
    wide = tried.case.build(transform_of(1.0, features=FEATURES + 3))
    chunk = tried.one
    sent, alone = wide.submit(replace(chunk, x=pad(chunk.x, (0, 3)))), tried.statistic.submit(chunk)
    tolerance = 1e-9 if tried.statistic.additive else 5e-3
    places = tried.statistic.positions(wide)
    torch.testing.assert_close(sent[:, places], alone, rtol=0, atol=tolerance)


NAMED = re.compile(
    r"^(l2_reg|clip_norm|radius|relaxation|epochs|tolerance|lipschitz / l2_reg|l2_reg \+ curvature|"
    r"rows of a user|local_std|step|parties|alpha|constant) "
)


def neighbours(
    name: str, transform: PublicTransform, draw: np.random.Generator
) -> tuple[Chunk, Chunk]:
    """Two users' chunks that differ in the last record, from rows of any size."""
    n, classes = int(draw.integers(1, 9)), 2
    features = draw.standard_normal((n, transform.dim - 1)) * 10.0 ** draw.uniform(-6, 13, (n, 1))
    if draw.random() < 0.5:
        features[:] = features[0]
    pair, y = np.stack([features, features]), draw.integers(0, classes, n)
    if not METHODS[name].classes:
        y = draw.integers(0, 2, (n, classes)).astype(np.int8)
    labels = np.stack([y, y])
    change = int(draw.integers(3))
    if change != 1:
        pair[1, -1] *= -1
    if change:
        labels[1, -1] ^= 1
    rows = [transform(torch.from_numpy(part).float()) for part in pair]
    first, second = map(one_user, rows, torch.from_numpy(labels))
    return first, second


def drawn(name: str, draw: np.random.Generator) -> tuple[Statistic, PublicTransform]:
    """A method with constants of any scale, and the transform of its rows."""
    clip_norm = 10.0 ** draw.uniform(-12, 12) if draw.random() < 0.5 else 1.0
    constant = float(np.float32(clip_norm * draw.uniform(0.01, 0.99)))
    dim = int(draw.integers(1, 30))
    transform = PublicTransform.identity(dim, clip_norm, constant)
    options: dict[str, Any] = {}
    if name in ("softmax", "svm", "logistic"):
        options["l2_reg"] = clip_norm**2 * 10.0 ** draw.uniform(-3, 12)
        if draw.random() < 0.7:
            options["radius"] = clip_norm / options["l2_reg"] * 10.0 ** draw.uniform(-6, 1)
        if draw.random() < 0.6:
            options |= {"solver": "sgd", "epochs": int(10 ** draw.uniform(0, 1.5))}
            options["batch_size"] = int(draw.integers(1, 10))
    elif draw.random() < 0.5:
        options["alpha"] = 10.0 ** draw.uniform(-3, 3) / clip_norm
    if name == "findings":
        options |= {"most_findings": 1 + draw.random(), "unknown": (None, "ask")[draw.integers(2)]}
    return build_method(name, transform, 2, options).statistic, transform


def holds(name: str, seed: int) -> bool:
    """Record and user level of one pair, and the integers that leave the user."""
    draw = np.random.default_rng(seed)
    try:
        method, transform = drawn(name, draw)
        chunks = neighbours(name, transform, draw)
        sizes = chunks[0].counts
        unit: Any = ("record", "user")[int(draw.integers(2))]
        guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5, unit=unit))
        mechanism = DiscreteGaussian.calibrated(method, guarantee, sizes)
        sent = [method.submit(chunk.rounded(mechanism.grid)) for chunk in chunks]
    except ValueError as refusal:
        if not NAMED.match(str(refusal)):
            raise
        return False
    for chunk in chunks:
        one_class = replace(chunk, y=chunk.one_class)
        check_stream(one_class, 2, transform.clip_norm, transform.constant)
    about = f"seed {seed}: {method}"
    assert all(part.isfinite().all() for part in sent)
    assert float(((sent[0] - sent[1]) * method.scale).norm()) <= guarantee.joint_sensitivity, about
    words = [mechanism.encode((part * method.scale)[0].numpy()) for part in sent]
    steps = words[0].view(np.int64) - words[1].view(np.int64)
    charged = guarantee.joint_sensitivity
    if mechanism.grid is None:
        charged += math.sqrt(steps.size) * float(np.max(mechanism.step))
    assert np.linalg.norm(steps * mechanism.step) <= charged * (1 + 1e-12), about
    return True


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("seeds", [60, pytest.param(2_500, marks=pytest.mark.slow)])
def test_a_release_at_any_scale(name: str, seeds: int) -> None:
    assert sum(holds(name, seed) for seed in range(seeds)) >= seeds / 4
