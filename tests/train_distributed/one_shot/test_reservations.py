"""What is reserved is followed by a noised sum: all that can be refused is refused before."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embed import EmbeddingSet, PublicTransform
from train_distributed import Privacy, release
from train_distributed.one_shot.blind_averaging import HEADS, TrainedHeads
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.statistic import Chunk
from train_distributed.one_shot.summation import Plan
from train_distributed.privacy import mechanism
from train_distributed.privacy.discrete_gaussian import MOST_STD, discrete_gaussian
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.released.evaluation import Evaluation

PRIVACY = st.builds(
    Privacy,
    st.sampled_from(np.geomspace(1e-3, 50, 99).tolist()),
    st.sampled_from([1e-3, 1e-5, 1e-9]),
    unit=st.sampled_from(["record", "user"]),
    noise_by=st.sampled_from(["users", "servers"]),
    group_size=st.sampled_from([1, 1, 3]),
)
ASKED = st.one_of(
    st.sampled_from(["softmax", "svm", "logistic"]).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.fixed_dictionaries(
                {},
                optional={"l2_reg": st.sampled_from([1e-4, 1.0, 1e2]), "user_clip": st.just(0.5)},
            ),
        )
    ),
    st.tuples(
        st.just("discriminant"),
        st.sampled_from(
            [
                {},
                {"moments": False},
                {"user_clip": 0.03},
                {"user_clip": 300.0},
                {"rounds": 3},
                {"sums": 2, "class_noise": 0.1},
                {"sums": 2, "class_noise": 30.0, "user_clip": (2.0, 0.3)},
                {"sums": 2, "class_noise": 0.1, "rounds": 2},
            ]
        ),
    ),
)
UNIT = PublicTransform.identity(3)  # features of length 1, as all that are mapped
ALWAYS = settings(max_examples=150, deadline=None)


@contextmanager
def events() -> Iterator[list[str]]:
    """Reservations and draws in their order; `append` is what `reserve` is given."""
    seen, right, right_float = [], mechanism.add_noise, mechanism.gaussian
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mechanism, "add_noise", lambda *of: (seen.append("draw"), right(*of))[1])
        patch.setattr(mechanism, "gaussian", lambda *of: (seen.append("draw"), right_float(*of))[1])
        yield seen


def rows_of(users: int, rows: int, scale: float = 1.0, seed: int = 0) -> EmbeddingSet:
    """So many users of equally many rows of three columns."""
    draw, count = np.random.default_rng(seed), users * rows
    x = draw.standard_normal((count, 3)) * 10.0 ** draw.uniform(-scale, scale, (count, 1))
    return EmbeddingSet(
        embeddings=x.astype(np.float32),
        labels=draw.integers(0, 4, count),
        users=np.arange(count) % users,
        meta={"class_names": list("abcd")},
    )


@ALWAYS
@given(
    PRIVACY,
    ASKED,
    st.sampled_from([1, 2, 5, 300, 3000]),
    st.sampled_from([1, 50, 900, 20_000]),
)
def test_every_grid_is_one_that_the_sampler_takes(
    privacy: Privacy, asked: tuple[str, dict[str, Any]], users: int, rows: int
) -> None:
    """Of every sum, before any of them is made; none of these is refused."""
    regularised = {"l2_reg": 1.0} if asked[0] in HEADS else {}
    method = build_method(asked[0], UNIT, 4, regularised | asked[1])
    sizes = torch.full((users,), rows)
    sizes[0] = 1
    for planned in Plan.of(method, sizes, privacy).integers:
        for std in np.unique(planned.stds_in_steps):
            discrete_gaussian(float(std), 1)
        assert planned.code.largest_sum < 2.0**63


@ALWAYS
@given(
    PRIVACY, st.sampled_from([0, 10]), st.sampled_from([1, 7, 900]), st.sampled_from([1, 30_000])
)
def test_so_is_that_of_an_evaluation(privacy: Privacy, bins: int, users: int, rows: int) -> None:
    method, sizes = Evaluation(num_classes=7, bins=bins), torch.full((users,), rows)
    (planned,) = Plan.of(method, sizes, privacy).integers
    assert float(np.max(planned.stds_in_steps)) <= MOST_STD


@ALWAYS
@given(
    PRIVACY,
    ASKED,
    st.sampled_from([1, 2, 5]),
    st.sampled_from([1, 50]),
    st.sampled_from([0.0, 30.0]),
    st.sampled_from(["discrete", "discrete", "float"]),
)
def test_a_reservation_is_followed_by_a_noised_sum(
    privacy: Privacy, asked: Any, users: int, rows: int, scale: float, noise: Any
) -> None:
    data, (name, options) = rows_of(users, rows, scale), asked
    given = {"noise": noise, "allow_delta": True, "num_classes": 4}
    with events() as seen:
        released = release(
            data, name, privacy, reserve=lambda _: seen.append("reserve"), **given, **options
        )
    adders = 1 if noise == "float" else 2 if privacy.noise_by == "servers" else users
    assert seen == ["reserve"] + ["draw"] * adders * released.report["rounds"]
    assert released.weights.isfinite().all()


def test_a_small_promise_for_users_of_many_rows_is_kept() -> None:
    """The finest grid would need noise of more steps than the sampler draws."""
    with events() as seen:
        promise, given = Privacy(0.02, 1e-5, unit="user"), {"sums": 2, "class_noise": 9.0}
        released = release(rows_of(5, 50), "discriminant", promise, **given)
    assert len(seen) == released.report["rounds"] * 5 == 10


def test_noise_that_nobody_can_draw_is_no_plan() -> None:
    sizes, enough = {"honest": 1, "dimension": 2}, {"sensitivity": 1.0, "rounded_users": 0}
    DiscreteGaussian(local_std=2.0**53, step=1.0, **sizes, **enough)
    steps = np.array([1.0, 0.5])
    for step in (steps, 0.5):
        with pytest.raises(ValueError, match=r"must be <= 2\^53 steps.* got 1.801e\+16 steps"):
            DiscreteGaussian(local_std=2.0**53, step=step, **sizes, **enough)


class Broken(EmbeddingUsers):
    """A stream whose last user has one row that is wrong."""

    bad: float | int

    def chunks(self) -> Iterator[Chunk]:
        for chunk in super().chunks():
            for user in range(len(chunk.users)):
                one = torch.arange(len(chunk.users)) == user
                part = chunk.select(one)
                if int(part.users) == len(self.sizes) - 1 and isinstance(self.bad, int):
                    part = replace(part, y=torch.full_like(part.y, self.bad))
                elif int(part.users) == len(self.sizes) - 1:
                    part = replace(part, x=torch.full_like(part.x, self.bad))
                yield part


@pytest.mark.parametrize("bad", [math.nan, math.inf, 3.0, 4, -1])
@pytest.mark.parametrize("method", ["discriminant", "softmax"])
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_rows_that_stream_in_are_refused_before(method: str, bad: float, noise: Any) -> None:
    data = rows_of(4, 5)
    stream = Broken(data, PublicTransform.identity(3), own_partition(data))
    object.__setattr__(stream, "bad", bad)
    with events() as seen, pytest.raises(ValueError, match=r"must (be finite|lie in|have|begin)"):
        release(
            stream,
            method,
            Privacy(1.0, 1e-5),
            num_classes=4,
            noise=noise,
            reserve=lambda _: seen.append("reserve"),
        )
    assert not seen


class Short(EmbeddingUsers):
    """A stream that leaves its last user out."""

    def chunks(self) -> Iterator[Chunk]:
        for chunk in super().chunks():
            yield chunk.select(chunk.users < len(self.sizes) - 1)


@pytest.mark.parametrize("least", [None, 3])
@pytest.mark.parametrize("noise", ["discrete", "float"])
def test_users_that_do_not_stream_in_are_missed_before(noise: Any, least: int | None) -> None:
    """Their rows would be counted, and their noise."""
    data = rows_of(4, 5)
    stream = Short(data, PublicTransform.identity(3), own_partition(data))
    with events() as seen, pytest.raises(ValueError, match="got none for 3"):
        release(
            stream,
            "discriminant",
            Privacy(1.0, 1e-5),
            num_classes=4,
            noise=noise,
            min_survivors=least,
            reserve=lambda _: seen.append("reserve"),
        )
    assert not seen


@pytest.mark.parametrize("stop", [ArithmeticError, MemoryError, KeyboardInterrupt])
def test_a_user_that_cannot_be_trained_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    """The last of them, after all others have been."""
    right, trained = TrainedHeads.submit, []

    def submit(self: TrainedHeads, chunk: Chunk) -> torch.Tensor:
        trained.extend(chunk.users.tolist())
        if len(trained) == 6:
            raise stop("tolerance must be reached, got 1")
        return right(self, chunk)

    monkeypatch.setattr(TrainedHeads, "submit", submit)
    data = replace(rows_of(6, 4), users=np.repeat(range(6), [1, 2, 3, 4, 5, 9]))
    with events() as seen, pytest.raises(stop):
        release(data, "softmax", Privacy(1.0, 1e-5), reserve=lambda _: seen.append("reserve"))
    assert not seen
