"""Rows that stream in: held to all that a sensitivity assumes, in an order that nobody chose."""

import itertools
import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import least_squares_sensitivity
from tests.kernels import ByPlace
from tests.train_distributed.one_shot.builders import embedded, made, one_user, refused_early
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.extra_sums import ClippedGradient
from train_distributed.one_shot.source import EmbeddingUsers, Source, check_stream, own_partition
from train_distributed.one_shot.statistic import Chunk, submissions
from train_distributed.partition import Partition, split
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.released import FINEST_GRID, evaluation
from train_distributed.released.evaluation import Evaluation
from train_distributed.research.rivals.common import UserRows

GOOD = [1.0, 0.6, 0.7]
PROMISE = Privacy(5.0, 1e-5, 1.0)
ORDERS = list(itertools.permutations(range(3)))


def chunk_of(x: Tensor, counts: list[int] | None = None, y: Tensor | None = None) -> Chunk:
    users, n = x.shape[:2]
    y = torch.zeros(users, n, dtype=torch.int64) if y is None else y
    return Chunk(torch.arange(users), x, y, torch.tensor(counts or [n] * users))


def one_row(row: list[float], dtype: torch.dtype = torch.float64) -> Chunk:
    return chunk_of(torch.tensor(row, dtype=torch.float64).to(dtype)[None, None])


@dataclass(frozen=True)
class Stream:
    """Users whose rows somebody else has transformed: chunks, as often as they are read."""

    parts: tuple[Chunk, ...]
    sizes: Tensor = field(default_factory=lambda: torch.tensor([2, 2]))
    again: float = 1.0  # factor of the features whenever they are read once more
    passes: list[int] = field(default_factory=list)

    @property
    def dim(self) -> int:
        return self.parts[0].x.shape[2]

    def chunks(self):
        self.passes.append(1)
        longer = self.again if len(self.passes) > 1 else 1.0
        for part in self.parts:
            x = part.x.clone()
            x[..., 1:] *= longer
            yield replace(part, x=x)


def good(row: list[float] = GOOD, label: int = 0, counts: list[int] | None = None) -> Chunk:
    """Two users of two rows each that no transform has clipped; the last one may be another."""
    x = torch.tensor(GOOD).expand(2, 2, 3).clone()
    x[1, 1] = torch.tensor(row)
    return chunk_of(x, counts, torch.tensor([[0, 0], [0, label]]))


STREAMS: list[tuple[tuple[Chunk, ...], str]] = [
    ((good([1.0, 1.0, 0.01]),), "norm <= clip_norm"),
    ((good([1.0, 1e30, 0.0]),), "norm <= clip_norm"),
    ((good([1.0, math.nan, 0.0]),), "rows must be finite, got 1 that are not.* of user 1"),
    ((good([1.0, -math.inf, 0.0]),), "rows must be finite, got 1 that are not.* of user 1"),
    ((good([0.0, 1.1, 0.0]),), "rows must begin with the constant 1.0, got 0.0"),
    ((good(label=2),), r"labels must lie in \[0, 2\)"),
    ((good(label=-1),), r"labels must lie in \[0, 2\)"),
    ((good(), good()), "users must stream in once each"),
    ((good(counts=[2, 1]), good()), "as many rows as their sizes say"),
    ((good().select(torch.tensor([True, False])),), "got none for 1"),  # whose noise would count
]


@pytest.mark.parametrize("noise", ["discrete", "float"])
@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize(("parts", "message"), STREAMS)
def test_streams_are_refused_before_anything_is_reserved_or_drawn(parts, message, method, noise):
    if method == "softmax" and "constant" in message:
        return  # a trained head needs none
    for least in (None, 1):
        given = {"num_classes": 2, "noise": noise, "min_survivors": least}
        release(Stream((good(),)), method, PROMISE, **given)
        refusal = pytest.raises(ValueError, match=message)
        refused_early(refusal, Stream(parts), method, **given)


def test_rows_of_a_stream_are_held_to_their_bound_whenever_they_are_read() -> None:
    stream, two = Stream((good(),), again=1.3), {"sums": 2, "class_noise": 0.1}
    with pytest.raises(ValueError, match="norm <="):
        release(stream, "discriminant", PROMISE, noise="float", num_classes=2, **two)
    assert len(stream.passes) == 2


def test_rows_of_a_stream_cannot_be_compared_with_public_ones() -> None:
    public = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).numpy()
    transform = PublicTransform.fit(public)
    held = Stream((chunk_of(transform(public[:4]).unflatten(0, (2, 2))),))
    given: dict[str, Any] = {"transform": transform, "num_classes": 2}
    with pytest.raises(ValueError, match="vouch_for_transform must be set for users that stream"):
        release(held, "discriminant", PROMISE, **given)
    report = release(held, "discriminant", PROMISE, noise="float", **given).report
    assert "nobody compared private rows with the public ones" in report["unsuitable_because"]
    given |= {"vouch_for_transform": True}
    report = release(held, "discriminant", PROMISE, **given).report
    assert report["suitable_for_release"] is True
    assert "vouched for" in report["public_transform"]


def test_a_constant_is_compared_as_float64() -> None:
    """In float32 1 + 2⁻³⁰ is 1: the features would be longer than √(c² − a²)."""
    constant = 1 + 2.0**-30
    clip_norm = math.hypot(constant, 2.0**-6)
    check_stream(one_row([constant, 2.0**-6]), 2, clip_norm, constant)
    longer = one_row([1.0, 2.0**-6 * (1 + 2.0**-20)], torch.float32)
    assert float(torch.linalg.vector_norm(longer.x.double())) <= clip_norm
    with pytest.raises(ValueError, match=r"rows must begin with the constant 1.00000.*, got 1.0$"):
        check_stream(longer, 2, clip_norm, constant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_have_a_bound_of_their_own(dtype: torch.dtype) -> None:
    """A norm known to 10⁻¹² of c says little of features that are a millionth of it."""
    constant, reach = 1.0, 1e-6
    clip_norm = math.hypot(constant, reach)
    check_stream(one_row([constant, reach * (1 - 1e-4)], dtype), 2, clip_norm, constant)
    longer = one_row([constant, reach * (1 + 1e-3)], dtype)
    assert float(torch.linalg.vector_norm(longer.x.double())) <= clip_norm * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"features of norm <= sqrt\(clip_norm\^2 - constant\^2\)"):
        check_stream(longer, 2, clip_norm, constant)


@pytest.mark.parametrize("user", [0, 5, 6])
def test_every_user_of_a_stream_is_looked_at(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the rows are cut into parts, and never the padding."""
    monkeypatch.setattr("train_distributed.one_shot.source.BLOCK", 12)
    x = torch.tensor([0.5, 0.5, 0.5]).expand(7, 2, 3).clone()
    x[:, 1] = 99.0  # padding
    check_stream(chunk_of(x, [1] * 7), 3, 1.0, 0.5)
    x[user, 0, 0] = 0.25
    with pytest.raises(ValueError, match=r"rows must begin with the constant 0\.5, got 0\.25"):
        check_stream(chunk_of(x, [1] * 7), 3, 1.0, 0.5)


@pytest.mark.parametrize(("weight", "cosine"), [(0.5, -1.0), (3.0, -1 / 18)])
def test_accepted_streams_move_no_more_than_is_charged(weight: float, cosine: float) -> None:
    """The longest features that pass, at the worst angle 1/(2α²r²): squares count lengths twice."""
    constant, clip_norm = 2.0**-5, math.hypot(2.0**-5, 1.0)
    bound = math.sqrt(clip_norm**2 - constant**2)
    transform, alpha = PublicTransform.identity(2, clip_norm, constant), weight / bound
    statistic = made("discriminant", transform, 2, alpha=alpha).statistic
    longest, sent = bound * (1 + 1e-12) * (1 - 2.0**-52), []
    for row in ([1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]):
        chunk = one_row([constant] + [longest * entry for entry in row])
        check_stream(chunk, 2, clip_norm, constant)
        sent.append(submissions(statistic, chunk, None))
    moved = float((sent[0] - sent[1]).norm())
    stated = least_squares_sensitivity(clip_norm, alpha, constant)
    guarantee = Guarantee.of(torch.tensor([1]), statistic, Privacy(1.0, 1e-5))
    assert stated < moved <= guarantee.joint_sensitivity <= stated * (1 + 1e-10)


@pytest.mark.parametrize("moments", [True, False])
def test_rounded_rows_at_the_clip_norm_move_as_stated(moments: bool) -> None:
    """Antipodal, every entry just below a point of the grid: at the nearest one they exceed c."""
    entry, constant, sizes = 2.0**-4 - 2.0**-22, 0.25, torch.tensor([1])
    transform = PublicTransform.identity(64, math.sqrt(64 * entry**2 + constant**2), constant)
    statistic = made("discriminant", transform, 2, moments=moments).statistic
    guarantee = Guarantee.of(sizes, statistic, Privacy(1.0, 1e-5))
    grid = DiscreteGaussian.calibrated(statistic, guarantee, sizes).grid
    assert grid == 2.0**-20
    first, second = (
        submissions(statistic, one_row([constant] + [sign * entry] * 64), grid) for sign in (1, -1)
    )
    moved = float((first - second).norm())
    assert 0.999 * guarantee.sensitivity <= moved <= guarantee.sensitivity


@settings(derandomize=True, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.integers(-30, 3))
def test_rounding_towards_zero_never_lengthens_a_row(row: list[float], exponent: int) -> None:
    """And its entries are whole steps, which encode without another rounding."""
    grid, x = 2.0**exponent, np.array(row)
    rounded = one_row(row).rounded(grid).x.numpy()
    assert np.all(np.abs(rounded) <= np.abs(x))
    assert np.all(rounded * x >= 0)
    assert np.all(np.abs(x - rounded) < grid)
    steps = FixedPoint(grid, 1e6, 1).encode(rounded).view(np.int64)
    assert steps.tolist() == (rounded / grid).tolist()


@pytest.mark.parametrize("grid", [0.3, 3.0, 0.0, -0.5, math.inf, math.nan])
def test_a_grid_that_division_would_round_is_refused(grid: float) -> None:
    with pytest.raises(ValueError, match=f"grid must be a power of two, got {grid}"):
        one_row(GOOD).rounded(grid)


def test_only_training_rows_stream_in_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where memory cuts the users into several chunks."""
    monkeypatch.setattr("train_distributed.one_shot.source.CHUNK", 30)
    monkeypatch.setattr(Partition, "shuffled", lambda partition, generator: partition)
    x, every = np.random.default_rng(0).standard_normal((20, 4)), np.arange(20)
    data = embedded(x, every % 3, 3, test=every % 4 == 3)
    train = np.flatnonzero(data.split == 0)
    held = split(torch.from_numpy(data.labels[train]), 6)
    users = EmbeddingUsers(data, PublicTransform.identity(4), held)
    chunks = list(users.chunks())
    assert len(chunks) > 1
    assert sorted(user for chunk in chunks for user in chunk.users.tolist()) == list(range(6))
    for chunk in chunks:
        for user, own, y, count in zip(chunk.users, chunk.x, chunk.y, chunk.counts, strict=True):
            rows = train[held.rows(int(user)).numpy()]
            assert torch.equal(own[:count], users.transform(data.embeddings[rows]))
            assert y[:count].tolist() == data.labels[rows].tolist()
    assert users.sizes.tolist() == held.counts.tolist()
    assert users.dim == chunks[0].x.shape[2]


def test_users_are_those_that_the_set_names() -> None:
    named, x = np.array([7, 3] * 10), np.ones((20, 4))
    held = own_partition(embedded(x, named % 3, 3, users=named))
    assert [set(named[held.rows(user).numpy()]) for user in (0, 1)] == [{3}, {7}]
    unnamed = EmbeddingSet(embeddings=x.astype(np.float32), labels=named)
    assert own_partition(unnamed, single=True).users == 1


def check_uniform(drawn: list[tuple[int, ...]]) -> None:
    counts, share = [drawn.count(order) for order in ORDERS], len(drawn) / len(ORDERS)
    assert sum(counts) == len(drawn)
    assert max(abs(count - share) for count in counts) < 5 * math.sqrt(share)


def numbered(**fields: Any) -> EmbeddingSet:
    """Three rows of one user and two of another, each its own number."""
    labels = np.array([0, 0, 1, 0, 1])
    users = np.array([4, 4, 4, 9, 9])
    return embedded(np.arange(5)[:, None], **{"labels": labels} | fields, classes=2, users=users)


def test_rows_of_a_set_are_shuffled_before_their_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bits, too, may depend on a row's place."""
    taken = list[tuple[int, ...]]()

    def seen(transform: PublicTransform, x: np.ndarray) -> Tensor:
        taken.append(tuple(x[:, 0].astype(int).tolist()))
        return torch.from_numpy(x)

    monkeypatch.setattr(PublicTransform, "__call__", seen)
    data = numbered()
    users = EmbeddingUsers(data, PublicTransform.identity(1), own_partition(data))
    for _ in range(1200):
        list(users.chunks())
    check_uniform([rows for rows in taken if len(rows) == 3])
    assert {tuple(sorted(rows)) for rows in taken if len(rows) == 2} == {(3, 4)}


def test_rows_of_a_stream_are_shuffled() -> None:
    x = torch.tensor([[[1, 0], [1, 1 / 4], [1, 1 / 2]], [[1, 3 / 4], [1, 1], [9, 9]]])
    y = torch.tensor([[0, 0, 1], [0, 1, 0]])
    held = Stream((chunk_of(x, [3, 2], y),), torch.tensor([3, 2]))
    rows, drawn = Source.of(held, None, None, 2), []
    for _ in range(1200):
        (chunk,) = rows.chunks()
        drawn.append(tuple((4 * chunk.x[0, :, 1]).int().tolist()))
        assert chunk.x[1, 2, 0] == 9
        assert (chunk.y[0] == (chunk.x[0, :, 1] == 1 / 2)).all()
    check_uniform(drawn)


@pytest.mark.parametrize("several", [False, True])
def test_rows_of_an_evaluation_are_shuffled_before_they_are_predicted(several: bool) -> None:
    drawn = []

    def predict_proba(x: np.ndarray) -> Tensor:
        drawn.append(tuple(x[:3, 0].astype(int).tolist()))
        assert set(x[3:, 0].tolist()) == {3.0, 4.0}
        return torch.full((len(x), 2), 0.5)

    model: Any = SimpleNamespace(findings=several, predict_proba=predict_proba)
    findings = {"labels": np.full(5, -1), "findings": np.eye(5, 2, dtype=np.int8)}
    data = numbered(test=np.full(5, 2), **(findings if several else {}))
    given = Evaluation(num_classes=2), [model], data, np.arange(5), own_partition(data, 2)
    for _ in range(1200):
        list(evaluation.submissions(*given, FINEST_GRID))
    check_uniform(drawn)


def test_rows_of_many_rounds_are_shuffled_before_they_are_divided() -> None:
    """Charter learns from a user's first rows and verifies on its last."""
    drawn, data = [], numbered()
    transform = PublicTransform.identity(1, 10.0)
    for _ in range(1200):
        rows = UserRows.of(data, transform, own_partition(data), 2, None)
        drawn.append(tuple(rows.x[rows.users.rows(0), 1].int().tolist()))
        assert rows.y[rows.users.rows(0)].tolist() == [int(each == 2) for each in drawn[-1]]
        assert set(rows.x[rows.users.rows(1), 1].tolist()) == {3.0, 4.0}
    check_uniform(drawn)


def test_a_generator_fixes_the_order_and_is_left_as_it_is() -> None:
    data, made_of = numbered(), []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        before = generator.get_state()
        source = Source.of(data, PublicTransform.identity(1), None, None, generator)
        made_of.append([chunk.y for _ in range(9) for chunk in source.chunks()])
        assert torch.equal(generator.get_state(), before)
    assert all(torch.equal(*pair) for pair in zip(*made_of, strict=True))
    assert len({tuple(y[-1].tolist()) for y in made_of[0]}) > 1  # anew at every reading


def by_class(p: int, replaced: bool) -> tuple[np.ndarray, np.ndarray]:
    """99 rows in the order of their classes; the first is of the last class in the neighbour."""
    draw = np.random.default_rng(p)
    rows, labels = draw.standard_normal((99, p)).astype(np.float32), np.repeat(np.arange(3), 33)
    if replaced:
        rows[0], labels[0] = -rows[0], 2
    order = np.argsort(labels, kind="stable")
    return rows[order], labels[order]


COLUMNS = [3, 8, 12, 15, 16, 17, 31, 33, 48, 64, 97]


@pytest.mark.parametrize("p", COLUMNS)
def test_no_weights_make_a_gradient_depend_on_a_row_s_place(p: int) -> None:
    """Of two columns that are equal and huge, rounding decides which class a row is."""
    transform = PublicTransform.identity(p)
    weights = torch.randn(p + 1, 1, generator=torch.Generator().manual_seed(p)).double()
    for size in (1e88, 1.0):
        gradient, sent = ClippedGradient(weights=size * weights.repeat(1, 3), clip_norm=0.25), []
        for replaced in (False, True):
            x, y = (torch.from_numpy(each) for each in by_class(p, replaced))
            with ByPlace():
                sent.append(submissions(gradient, one_user(transform(x), y), None)[0])
        bound = gradient.record_sensitivity(torch.tensor([99]))
        assert float((sent[0] - sent[1]).norm()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("p", COLUMNS)
@pytest.mark.parametrize("size", [1e88, 1e-18, 1.0])
def test_no_model_makes_an_evaluation_depend_on_a_row_s_place(p: int, size: float) -> None:
    """About a centre, along directions and with weights that whoever made the model has chosen."""
    draw = torch.Generator().manual_seed(p)
    along = torch.rand(p, 1, generator=draw).double().repeat(1, 3) / p
    centre = torch.full((3,), 0.1 / p, dtype=torch.float64)
    mapped = {"directions": along, "centre": centre, "length": 2.0**-20}
    weights = size * torch.eye(4, 3, dtype=torch.float64).roll(1, 0)
    transform = replace(PublicTransform.identity(p), **mapped)
    model = Release(weights, transform, ("a", "b", "c"))
    method, sent = Evaluation(num_classes=3), []
    for replaced in (False, True):
        data = embedded(*by_class(p, replaced), 3, test=np.full(99, 2))
        given = method, [model], data, np.arange(99), own_partition(data, 2), FINEST_GRID
        with ByPlace():
            ((_, own),) = evaluation.submissions(*given)
        sent.append(own[0])
    moved = float((sent[0] - sent[1]).norm())
    assert moved <= method.record_sensitivity(torch.tensor([99])) * (1 + 1e-9)
