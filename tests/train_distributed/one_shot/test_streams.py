"""Rows that stream in by themselves are held to all that a sensitivity assumes of them."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import PublicTransform
from heads import least_squares_sensitivity
from tests.train_distributed.one_shot.fitting import METHODS_OF_CLASSES
from train_distributed import Privacy, release
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.source import check_stream
from train_distributed.one_shot.statistic import Chunk
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian


@dataclass(frozen=True)
class Stream:
    """Two users of two rows each that no transform has clipped."""

    rows: Tensor  # (2, 2, 3)
    sizes: Tensor = field(default_factory=lambda: torch.tensor([2, 2]))
    labels: Tensor = field(default_factory=lambda: torch.zeros(2, 2, dtype=torch.int64))
    dim: int = 3

    def chunks(self):
        yield Chunk(torch.arange(2), self.rows, self.labels, self.sizes)


GOOD = [1.0, 0.6, 0.7]


@pytest.mark.parametrize("noise", ["discrete", "float"])
@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([1.0, 1.0, 0.01], "norm <= clip_norm"),
        ([1.0, 1e30, 0.0], "norm <= clip_norm"),
        ([1.0, math.nan, 0.0], "finite"),
        ([1.0, -math.inf, 0.0], "finite"),
        ([0.5, 1.0, 0.0], "rows must begin with the constant 1.0, got 0.5"),
        ([0.0, 1.1, 0.0], "rows must begin with the constant 1.0, got 0.0"),
    ],
)
def test_bad_rows_are_refused_under_either_noise(
    method: str, row: list[float], message: str, noise: Any
) -> None:
    if method == "softmax" and "constant" in message:
        return  # a trained head needs none
    rows = torch.tensor(GOOD).expand(2, 2, 3).clone()
    promise = Privacy(5.0, 1e-5, 1.0)
    release(Stream(rows), method, promise, noise=noise, num_classes=2)
    rows[1, 1] = torch.tensor(row)
    with pytest.raises(ValueError, match=message):
        release(Stream(rows), method, promise, noise=noise, num_classes=2)


@pytest.mark.parametrize(
    "given", [{}, {"moments": False}, {"sums": 2, "class_noise": 0.1}, {"rounds": 2}]
)
def test_padding_may_be_anything(given: dict[str, Any]) -> None:
    rows = torch.tensor(GOOD).expand(2, 2, 3).clone()
    alone = Stream(rows, sizes=torch.tensor([2, 1]))
    promise = Privacy(math.inf, 1e-5, 1.0)
    given = {"noise": "float", "num_classes": 2, **given}
    before = release(alone, "discriminant", promise, **given)
    rows[1, 1] = 9.0
    after = release(alone, "discriminant", promise, **given)
    assert torch.equal(before.weights, after.weights)


@dataclass(frozen=True)
class Liar(Stream):
    """A stream whose users come twice, or with fewer rows than they said."""

    twice: bool = True

    def chunks(self):
        for chunk in super().chunks():
            yield chunk if self.twice else replace(chunk, counts=torch.tensor([2, 1]))
            yield chunk


@pytest.mark.parametrize(
    ("twice", "message"),
    [(True, "users must stream in once each"), (False, "as many rows as their sizes say")],
)
def test_users_come_once_with_the_rows_they_said(twice: bool, message: str) -> None:
    rows = torch.tensor(GOOD).expand(2, 2, 3).clone()
    promise = Privacy(5.0, 1e-5, 1.0)
    with pytest.raises(ValueError, match=message):
        release(
            Liar(rows, twice=twice),
            "discriminant",
            promise,
            noise="float",
            num_classes=2,
        )


def test_rows_of_a_stream_cannot_be_compared_with_public_ones() -> None:
    public = torch.randn(30, 2, generator=torch.Generator().manual_seed(0)).numpy()
    transform = PublicTransform.fit(public)
    held, promise = Stream(transform(public[:4]).unflatten(0, (2, 2))), Privacy(1.0, 1e-5, 1.0)
    given: dict[str, Any] = {"transform": transform, "num_classes": 2}
    with pytest.raises(ValueError, match="vouch_for_transform must be set for users that stream"):
        release(held, "discriminant", promise, **given)
    report = release(held, "discriminant", promise, noise="float", **given).report
    assert "nobody compared private rows with the public ones" in report["unsuitable_because"]
    given |= {"vouch_for_transform": True}
    report = release(held, "discriminant", promise, **given).report
    assert report["suitable_for_release"] is True
    assert "vouched for" in report["public_transform"]


@pytest.mark.parametrize("method", METHODS_OF_CLASSES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused_before_their_noise(
    method: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, drawn = torch.tensor(GOOD).expand(2, 2, 3).clone(), []
    rows[1, 1, 2] = bad
    mechanism = "train_distributed.privacy.mechanism"
    monkeypatch.setattr(f"{mechanism}.add_noise", lambda *_: drawn.append(1))
    with pytest.raises(ValueError, match=r"rows must be finite, got 1 that are not.* of user 1"):
        release(Stream(rows), method, Privacy(1.0, 1e-5, 1.0), num_classes=2)
    assert not drawn


@pytest.mark.parametrize("label", [2, -1])
def test_labels_are_checked_as_well(label: int) -> None:
    held = Stream(torch.tensor(GOOD).expand(2, 2, 3))
    held.labels[0, 0] = label
    with pytest.raises(ValueError, match=r"labels must lie in \[0, 2\)"):
        release(held, "discriminant", Privacy(1.0, 1e-5, 1.0), num_classes=2)


def one_row(row: list[float], dtype: torch.dtype) -> Chunk:
    """A single user's single row."""
    x = torch.tensor(row, dtype=torch.float64).to(dtype)[None, None]
    return Chunk(torch.zeros(1, dtype=torch.int64), x, torch.zeros(1, 1).long(), torch.tensor([1]))


def test_a_constant_is_compared_as_float64() -> None:
    """In float32 1 + 2⁻³⁰ is 1: the features would be longer than √(c² − a²)."""
    constant = 1 + 2.0**-30
    clip_norm = math.sqrt(constant**2 + 2.0**-12)
    check_stream(one_row([constant, 2.0**-6], torch.float64), 2, clip_norm, constant)
    longer = one_row([1.0, 2.0**-6 * (1 + 2.0**-20)], torch.float32)
    assert float(torch.linalg.vector_norm(longer.x.double())) <= clip_norm
    with pytest.raises(ValueError, match=r"rows must begin with the constant 1.00000.*, got 1.0$"):
        check_stream(longer, 2, clip_norm, constant)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_have_a_bound_of_their_own(dtype: torch.dtype) -> None:
    """A norm known to 10⁻¹² of c says little of features that are a millionth of it."""
    constant, reach = 1.0, 1e-6
    clip_norm = math.sqrt(constant**2 + reach**2)
    check_stream(one_row([constant, reach * (1 - 1e-4)], dtype), 2, clip_norm, constant)
    longer = one_row([constant, reach * (1 + 1e-3)], dtype)
    norm = torch.linalg.vector_norm(longer.x.double())
    assert float(norm) <= clip_norm * (1 + 1e-12)
    with pytest.raises(ValueError, match=r"features of norm <= sqrt\(clip_norm\^2 - constant\^2\)"):
        check_stream(longer, 2, clip_norm, constant)


@pytest.mark.parametrize(("weight", "cosine"), [(0.5, -1.0), (3.0, -1 / 18)])
def test_accepted_streams_move_no_more_than_is_charged(weight: float, cosine: float) -> None:
    """The longest features that pass, at the worst angle 1/(2α²r²): squares count lengths twice."""
    constant, reach = 2.0**-5, 1.0
    clip_norm = math.sqrt(constant**2 + reach**2)
    bound = math.sqrt(clip_norm**2 - constant**2)
    transform = PublicTransform.identity(2, clip_norm, constant)
    method = build_method("discriminant", transform, 2, {"alpha": weight / bound}).statistic
    longest = bound * (1 + 1e-12) * (1 - 2.0**-52)
    sent = []
    for row in ([1.0, 0.0], [cosine, math.sqrt(1 - cosine**2)]):
        chunk = one_row([constant] + [longest * entry for entry in row], torch.float64)
        check_stream(chunk, 2, clip_norm, constant)
        sent.append(method.submit(chunk) * method.scale)
    moved = float((sent[0] - sent[1]).norm())
    stated = least_squares_sensitivity(clip_norm, weight / bound, constant)
    guarantee = Guarantee.of(torch.tensor([1]), method, Privacy(1.0, 1e-5))
    assert stated < moved <= guarantee.joint_sensitivity <= stated * (1 + 1e-10)


@pytest.mark.parametrize("moments", [True, False])
def test_rounded_rows_at_the_clip_norm_move_as_stated(moments: bool) -> None:
    """Antipodal rows whose every entry lies just below a point of the grid that the sum chose.

    Rounded to the nearest point they are longer than c, and move the sum by more than is charged.
    """
    entry, constant = 2.0**-4 - 2.0**-22, 0.25
    transform = PublicTransform.identity(64, math.sqrt(64 * entry**2 + constant**2), constant)
    method = build_method("discriminant", transform, 2, {"moments": moments}).statistic
    sizes = torch.tensor([1])
    guarantee = Guarantee.of(sizes, method, Privacy(1.0, 1e-5))
    grid = DiscreteGaussian.calibrated(method, guarantee, sizes).grid
    assert grid == 2.0**-20
    first, second = (
        method.submit(one_row([constant] + [sign * entry] * 64, torch.float64).rounded(grid))
        for sign in (1, -1)
    )
    moved = float(((first - second) * method.scale).norm())
    assert 0.999 * guarantee.sensitivity <= moved <= guarantee.sensitivity


RADIUS = 1e-3


@pytest.mark.parametrize("solver", ["exact", "sgd"])
@pytest.mark.parametrize("name", ["softmax", "svm", "logistic"])
def test_blind_averaging_submits_weights_in_the_ball(name: str, solver: str) -> None:
    """Rows that pull far beyond the radius; the whole user moves by at most 2 R n."""
    transform = PublicTransform.identity(4, 1.0, 0.5)
    options = {"l2_reg": 1e-2, "solver": solver, "epochs": 5, "batch_size": 3}
    methods = [
        build_method(name, transform, 2, options | more).statistic
        for more in ({"radius": RADIUS}, {})
    ]
    rows = transform(torch.eye(4)[[0, 0, 1, 1, 2]])[None]
    sizes = torch.tensor([5])
    sent = []
    for labels in ([0, 0, 1, 1, 0], [1, 1, 0, 0, 1]):
        chunk = Chunk(torch.zeros(1).long(), rows, torch.tensor([labels]), sizes)
        held, free = (
            np.asarray(m.submit(chunk).unflatten(1, (5, 2))[0], np.longdouble) for m in methods
        )
        dims = (0, 1) if name == "softmax" else (0,)
        assert (np.sqrt(np.square(free).sum(dims)) > 100 * 5 * RADIUS).all()
        assert (np.sqrt(np.square(held).sum(dims)) <= 5 * RADIUS * (1 + 2.0**-50)).all()
        sent.append(held)
    moved = np.sqrt(np.square(sent[0] - sent[1]).sum())
    user = Guarantee.of(sizes, methods[0], Privacy(1.0, 1e-5, unit="user"))
    assert 0.9 * user.joint_sensitivity <= moved <= user.joint_sensitivity
