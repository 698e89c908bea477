"""Every user's rows come in an order that nobody chose, and no place decides what they add."""

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from tests.kernels import ByPlace
from train_distributed import Privacy, Release, release
from train_distributed.one_shot.extra_sums import ClippedGradient
from train_distributed.one_shot.source import EmbeddingUsers, Source, own_partition
from train_distributed.one_shot.statistic import Chunk, submissions
from train_distributed.released import FINEST_GRID, evaluation
from train_distributed.released.evaluation import Evaluation
from train_distributed.research.rivals.common import UserRows

ORDERS = list(itertools.permutations(range(3)))


@dataclass(frozen=True)
class Stream:
    """Users whose rows somebody else has transformed."""

    chunk: Chunk
    sizes: Tensor = field(default_factory=lambda: torch.tensor([3, 2]))
    dim: int = 2

    def chunks(self):
        yield self.chunk


def numbered() -> EmbeddingSet:
    """Three rows of one user and two of another, each its own number."""
    return EmbeddingSet(
        embeddings=np.arange(5, dtype=np.float32)[:, None],
        labels=np.array([0, 0, 1, 0, 1]),
        users=np.array([4, 4, 4, 9, 9]),
        meta={"class_names": ["a", "b"]},
    )


def check_uniform(drawn: list[tuple[int, ...]]) -> None:
    counts = [drawn.count(order) for order in ORDERS]
    assert sum(counts) == len(drawn)
    share = len(drawn) / len(ORDERS)
    assert max(abs(count - share) for count in counts) < 5 * math.sqrt(share)


def test_rows_of_a_set_are_shuffled_before_their_transform(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bits, too, may depend on a row's place."""
    taken = list[np.ndarray]()

    def seen(transform: PublicTransform, x: np.ndarray) -> Tensor:
        taken.append(x[:, 0])
        return torch.from_numpy(x)

    monkeypatch.setattr(PublicTransform, "__call__", seen)
    data = numbered()
    users = EmbeddingUsers(data, PublicTransform.identity(1), own_partition(data))
    for _ in range(1200):
        list(users.chunks())
    rows = [x.astype(int) for x in taken]
    firsts = [tuple(x.tolist()) for x in rows if len(x) == 3]
    check_uniform(firsts)
    assert {tuple(sorted(x.tolist())) for x in rows if len(x) == 2} == {(3, 4)}


def test_rows_of_a_stream_are_shuffled() -> None:
    x = torch.tensor([[[1, 0], [1, 1 / 4], [1, 1 / 2]], [[1, 3 / 4], [1, 1], [9, 9]]])
    y = torch.tensor([[0, 0, 1], [0, 1, 0]])
    held = Stream(Chunk(torch.arange(2), x, y, torch.tensor([3, 2])))
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

    class Model:
        findings = several

        def predict_proba(self, x: np.ndarray) -> Tensor:
            drawn.append(tuple(x[:3, 0].astype(int).tolist()))
            assert set(x[3:, 0].tolist()) == {3.0, 4.0}
            return torch.full((len(x), 2), 0.5)

    model: Any = Model()
    data = replace(numbered(), split=np.full(5, 2, np.uint8))
    if several:
        data = replace(data, labels=np.full(5, -1), findings=np.eye(5, 2, dtype=np.int8))
    held = own_partition(data, 2)
    for _ in range(1200):
        given = Evaluation(num_classes=2), [model], data, np.arange(5), held, FINEST_GRID
        list(evaluation.submissions(*given))
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
    data, made = numbered(), []
    for _ in range(2):
        generator = torch.Generator().manual_seed(3)
        before = generator.get_state()
        source = Source.of(data, PublicTransform.identity(1), None, None, generator)
        made.append([chunk.y for _ in range(9) for chunk in source.chunks()])
        assert torch.equal(generator.get_state(), before)
    assert all(torch.equal(*pair) for pair in zip(*made, strict=True))
    assert len({tuple(y[-1].tolist()) for y in made[0]}) > 1  # anew at every reading


@dataclass(frozen=True)
class Swollen(Stream):
    """A stream whose rows keep to their bound when they are first read, and not again."""

    passes: list[int] = field(default_factory=list)

    def chunks(self):
        self.passes.append(1)
        longer = 1.0 if len(self.passes) == 1 else 1.01
        x = self.chunk.x.clone()
        x[..., 1:] *= longer
        yield replace(self.chunk, x=x)


def test_rows_of_a_stream_are_held_to_their_bound_whenever_they_are_read() -> None:
    x = torch.tensor([[[1, 0, 1], [1, 1, 0], [1, 0.6, 0.7]]] * 2)
    y = torch.tensor([[0, 0, 1], [0, 1, 0]])
    held = Swollen(Chunk(torch.arange(2), x, y, torch.tensor([3, 3])), torch.tensor([3, 3]), 3)
    with pytest.raises(ValueError, match=r"norm <="):
        release(held, "discriminant", Privacy(5.0, 1e-3), num_classes=2, sums=2, class_noise=0.1)
    assert len(held.passes) == 2


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
    sent, transform = [], PublicTransform.identity(p)
    for size in (1e88, 1.0):
        weights = torch.randn(p + 1, 1, generator=torch.Generator().manual_seed(p)).double()
        gradient = ClippedGradient(weights=size * weights.repeat(1, 3), clip_norm=0.25)
        for replaced in (False, True):
            x, y = (torch.from_numpy(each) for each in by_class(p, replaced))
            chunk = Chunk(torch.zeros(1).long(), transform(x)[None], y[None], torch.tensor([99]))
            with ByPlace():
                sent.append(submissions(gradient, chunk, None)[0])
        bound = gradient.record_sensitivity(torch.tensor([99]))
        assert float((sent[-1] - sent[-2]).norm()) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("p", COLUMNS)
@pytest.mark.parametrize("size", [1e88, 1e-18, 1.0])
def test_no_model_makes_an_evaluation_depend_on_a_row_s_place(p: int, size: float) -> None:
    """About a centre, along directions and with weights that whoever made the model has chosen."""
    draw = torch.Generator().manual_seed(p)
    along = torch.rand(p, 1, generator=draw).double().repeat(1, 3) / p
    centre = torch.full((3,), 0.1 / p, dtype=torch.float64)
    plain = PublicTransform.identity(p)
    transform = replace(plain, directions=along, centre=centre, length=2.0**-20)
    weights = size * torch.tensor([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]).double()
    model = Release(weights, transform, ("a", "b", "c"))
    method, sent = Evaluation(num_classes=3), []
    for replaced in (False, True):
        x, y = by_class(p, replaced)
        data = EmbeddingSet(embeddings=x, labels=y, users=0 * y, split=np.full(99, 2, np.uint8))
        given = method, [model], data, np.arange(99), own_partition(data, 2), FINEST_GRID
        with ByPlace():
            ((_, own),) = evaluation.submissions(*given)
        sent.append(own[0])
    moved = float((sent[0] - sent[1]).norm())
    assert moved <= method.record_sensitivity(torch.tensor([99])) * (1 + 1e-9)
