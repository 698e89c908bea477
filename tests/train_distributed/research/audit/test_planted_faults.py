"""Faults that a run does not show: each of these tests fails when its line is broken."""

import math

import pytest
import torch

from heads import HuberSVMHead, SoftmaxHead, fit_exact
from train_distributed import accounting
from train_distributed.one_shot.blind_averaging import TrainedHeads
from train_distributed.one_shot.statistic import Chunk
from train_distributed.privacy.mechanism import DiscreteGaussian


@pytest.mark.parametrize("solver_name", ["exact", "sgd"])
@pytest.mark.parametrize("kind", [SoftmaxHead, HuberSVMHead])
def test_what_a_user_submits_lies_within_the_radius(solver_name, kind):
    head = kind(num_classes=2, l2_reg=0.01, clip_norm=1.0, radius=0.05)
    method = TrainedHeads(head=head, dim=3, solver=solver_name, epochs=20, batch_size=2)
    x = torch.nn.functional.normalize(torch.ones(1, 8, 3), dim=2) * (1 - 1e-6)
    counts = torch.tensor([8])
    sent = method.submit(Chunk(torch.tensor([0]), x, torch.ones(1, 8).long(), counts))
    norms = (sent / 8).unflatten(1, (3, 2)).square().sum(head.norm_dims).sqrt()
    assert float(norms.max()) == pytest.approx(0.05, rel=1e-5)  # without one it would be 40 times
    assert float(norms.max()) <= method.weight_bound(8)


def test_rows_on_a_grid_are_never_longer_than_before():
    x = torch.nn.functional.normalize(
        torch.randn(1, 500, 7, generator=torch.Generator().manual_seed(0)), dim=2
    )
    held = Chunk(torch.tensor([0]), x, torch.zeros(1, 500).long(), torch.tensor([500]))
    for grid in (2.0**-20, 2.0**-8, 0.25):
        rounded = held.rounded(grid).x
        assert bool((rounded.abs() <= x.double().abs()).all())
        assert bool((rounded / grid == (rounded / grid).round()).all())
        assert bool((rounded.norm(dim=2) <= x.double().norm(dim=2)).all())


def test_the_cast_to_float32_and_the_tolerance_are_charged():
    """2L/Λ, 2 n τ/Λ with τ = 10⁻³ L/n, and 2⁻²³ n (L + τ)/Λ for the cast of both neighbours."""
    head = SoftmaxHead(num_classes=3, l2_reg=0.5, clip_norm=1.0)
    reach = head.lipschitz / head.l2_reg
    for n in (1, 50, 10**6):
        stated = TrainedHeads(head=head, dim=4).record_sensitivity(torch.tensor([1, n]))
        assert stated >= reach * (2 + 2e-3 + 2.0**-23 * (n + 1e-3))
        assert stated <= reach * (2 + 2e-3 + 2.0**-23 * (n + 1) + n**2 * 2.0**-49)


def test_coarse_discrete_noise_pays_for_zeta_in_epsilon_and_in_delta():
    """Noise of one step: ζ is 10⁻³, so that e^ζ shows."""
    coarse = DiscreteGaussian(
        local_std=1.0, step=1.0, sensitivity=1.0, honest=20, dimension=1, rounded_users=0
    )
    zeta = math.exp(coarse.log_zeta)
    assert 1e-5 < zeta < 1e-1
    continuous = accounting.delta(1 - 2 * zeta, coarse.noise_multiplier)
    assert coarse.delta(1.0) == pytest.approx(math.exp(zeta) * continuous, rel=1e-9)
    spent = accounting.epsilon(math.exp(-zeta) * 1e-5, coarse.noise_multiplier)
    assert coarse.epsilon(1e-5) == pytest.approx(spent + 2 * zeta, rel=1e-9)
    many = {"honest": 100_000, "dimension": 1, "rounded_users": 0}
    local = accounting.noise_multiplier(1.0, 1e-5) / math.sqrt(100_000)
    planned = DiscreteGaussian.for_promise(1.0, 1e-5, sensitivity=1.0, step=local / 1.1, **many)
    assert 1e-6 < math.exp(planned.log_zeta) < 1e-4  # more would hide in its own slack
    assert planned.epsilon(1e-5) <= 1.0


@pytest.mark.parametrize(("n", "dim"), [(6, 20), (40, 3)])
def test_a_user_that_is_solved_is_left_alone_in_later_rounds(n, dim):
    """At 1e-9 float32 takes a user of long rows two rounds, one of short rows a single one."""
    draw = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(2, n, dim, generator=draw), dim=2) * 0.999
    x[1] = 1e-3
    y = torch.randint(3, (2, n), generator=draw)
    for l2_reg in (1e-2, 1e-4):
        head = SoftmaxHead(num_classes=3, l2_reg=l2_reg, clip_norm=1.0)
        together = fit_exact(head, x, y, tolerance=1e-9).weights[1]
        assert torch.equal(together, fit_exact(head, x[1:], y[1:], tolerance=1e-9).weights[0])
