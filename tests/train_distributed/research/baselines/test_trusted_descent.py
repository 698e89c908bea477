"""A descent of one trusted server: what a record moves, its noise, and what it computes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from embed import PublicTransform
from train_distributed import Privacy, accounting
from train_distributed.one_shot.centring import CENTRE_SHARE
from train_distributed.one_shot.further_rounds import ClippedGradient
from train_distributed.one_shot.users import Chunk
from train_distributed.partition import split
from train_distributed.research.baselines import trusted_descent
from train_distributed.research.baselines.trusted_descent import Setting, clipped_sums, train
from train_distributed.simulation.shared_training import RowsInMemory

CONSTANT, CLIPS = 0.5, torch.tensor([0.01, 0.2, 3.0], dtype=torch.float64)
TRANSFORM = PublicTransform.identity(3, math.sqrt(1.25), CONSTANT)
PLAIN = Setting(rounds=4, centre="public", clip=0.2, noise=0.5)


def rows(n: int, seed: int, far: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(n, 4) rows of the greatest length and labels of three classes."""
    draw = torch.Generator().manual_seed(seed)
    u = torch.randn(n, 3, generator=draw, dtype=torch.float64) + (0 if far is None else far)
    u = u / u.norm(dim=1, keepdim=True)
    x = torch.cat([torch.full((n, 1), CONSTANT, dtype=torch.float64), u], 1)
    return x, torch.randint(3, (n,), generator=draw)


def held(x: Tensor, y: Tensor) -> RowsInMemory:
    return RowsInMemory(x, y, split(y, 1))


@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
def test_no_replaced_record_moves_a_clipped_sum_by_more_than_2c(size: float) -> None:
    """Rows of any length, as they are about a centre; opposite ones and other labels."""
    farthest = torch.zeros(3, dtype=torch.float64)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        weights = size * torch.randn(4, 3, 3, generator=draw, dtype=torch.float64)
        x, y = rows(5, seed)
        x = x * (1 + 50 * torch.rand(5, 1, generator=draw, dtype=torch.float64))
        before = clipped_sums(x, y, weights, CLIPS)
        for record in range(5):
            for row in (-x[record], x[record], 1e3 * rows(1, 100 + seed)[0][0]):
                for label in range(3):
                    other_x, other_y = x.clone(), y.clone()
                    other_x[record], other_y[record] = row, label
                    moved = clipped_sums(other_x, other_y, weights, CLIPS) - before
                    farthest = farthest.maximum(moved.norm(dim=(0, 2)))
    assert bool((farthest <= 2 * CLIPS * (1 + 1e-12)).all())
    assert bool((farthest[:2] > 1.5 * CLIPS[:2]).all())


def test_all_descents_at_once_sum_what_each_would_alone() -> None:
    x, y = rows(40, 1)
    draw = torch.Generator().manual_seed(0)
    weights = 3 * torch.randn(4, 3, 3, generator=draw, dtype=torch.float64)
    together = clipped_sums(x, y, weights, CLIPS)
    chunk = Chunk(torch.zeros(1).long(), x[None], y[None], torch.tensor([40]))
    for j, clip in enumerate(CLIPS.tolist()):
        alone = ClippedGradient(weights=weights[:, j], clip_norm=clip).submit(chunk)
        torch.testing.assert_close(together[:, j].flatten(), alone[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("centre", ["public", "private"])
@pytest.mark.parametrize("rounds", [1, 7])
def test_noise_of_all_sums_composes_to_the_promise(
    centre, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """μ of every sum, from the noise that is drawn and the sensitivity 2c in units of c."""
    (x, y), drawn = rows(50, 0), []
    real = torch.randn

    def counted(*shape: int, **how) -> Tensor:
        drawn.append(math.prod(shape))
        return real(*shape, **how)

    stds: list[float] = []
    of = trusted_descent.Guarantee.of

    def planned(*given, **how):
        found = of(*given, **how)
        stds.append(found.float_sum_std)
        return found

    monkeypatch.setattr(torch, "randn", counted)
    monkeypatch.setattr(trusted_descent.Guarantee, "of", planned)
    setting = replace(PLAIN, rounds=rounds, centre=centre)
    draw = torch.Generator().manual_seed(0)
    train(held(x, y), TRANSFORM, 3, [setting], Privacy(1.0, 1e-5), draw)
    first, *_, each = [*stds] if centre == "private" else [math.inf, *stds]
    assert len(drawn) == rounds + (centre == "private")
    squared_mu = rounds * (2 / each) ** 2 + (2 / first) ** 2
    assert accounting.epsilon(1e-5, 1 / math.sqrt(squared_mu)) == pytest.approx(1.0, rel=1e-6)
    assert (2 / first) ** 2 / squared_mu == pytest.approx(
        CENTRE_SHARE if centre == "private" else 0
    )


def test_noise_adds_to_the_weights_what_the_setting_says() -> None:
    """Rows that pull nowhere: one of each class at the same place."""
    x = rows(1, 0)[0].expand(3, -1)
    setting = replace(PLAIN, rounds=8, clip=1e-9)
    last = []
    for seed in range(400):
        draw = torch.Generator().manual_seed(seed)
        last.append(
            train(held(x, torch.arange(3)), TRANSFORM, 3, [setting], Privacy(1, 1e-5), draw)
        )
    # how much of the noise of each round is in the mean of the last four of eight weights
    steps = torch.tensor([1.0, 1, 1, 1, 1, 0.75, 0.5, 0.25]) / math.sqrt(8)
    expected = setting.noise * float(steps.norm())
    assert float(torch.cat(last).std()) == pytest.approx(expected, rel=0.05)


def test_weights_are_those_of_the_given_rows_and_a_centre_tells_far_rows_apart() -> None:
    x, y = rows(3000, 0, far=torch.tensor([4.0, 0, 0]))
    y = (x[:, 2] > 0).long() + (x[:, 2] > 0.2).long()
    right = {}
    for centre in ("public", "private"):
        setting = replace(PLAIN, rounds=10, centre=centre, noise=1.0)
        draw = torch.Generator().manual_seed(0)
        (weights,) = train(held(x, y), TRANSFORM, 3, [setting], Privacy(1.0, 1e-5), draw)
        right[centre] = float(((x @ weights).argmax(1) == y).double().mean())
    assert right["private"] > right["public"] + 0.05
    assert right["private"] > 0.7


def test_settings_do_not_disturb_each_other() -> None:
    x, y = rows(200, 3)
    others = [replace(PLAIN, clip=c, noise=s) for c, s in ((0.2, 0.5), (0.01, 2.0), (1.0, 0.1))]
    three, one = (
        train(held(x, y), TRANSFORM, 3, each, Privacy(2.0, 1e-5), torch.Generator().manual_seed(1))
        for each in (others, others[:1])
    )
    torch.testing.assert_close(three[0], one[0], rtol=1e-9, atol=1e-9)
