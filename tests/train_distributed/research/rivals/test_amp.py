"""Approximate minima perturbation: its minimiser, and the share of ε of each of its noises."""

import math

import pytest
import torch

from heads import HuberSVMHead
from train_distributed.research.rivals import central


def test_minimiser_has_a_small_gradient():
    generator = torch.Generator().manual_seed(0)
    x = torch.nn.functional.normalize(torch.randn(500, 5, generator=generator).double(), dim=1)
    sign = torch.where(x[:, 0] > 0, 1.0, -1.0).double()
    linear = 0.1 * torch.randn(5, generator=generator).double()
    head = HuberSVMHead(num_classes=2, l2_reg=0.01, clip_norm=1.0)
    w = central.minimise(head, x, sign, linear, 1e-9).requires_grad_()
    gap = 1.1 - (x @ w) * sign
    loss = torch.where(gap > 0.2, gap - 0.1, gap.clamp(min=0) ** 2 / 0.4).mean()
    (loss + 0.005 * w @ w + linear @ w).backward()
    assert w.grad is not None
    assert float(w.grad.norm()) < 2e-9


def test_machines_compose_to_the_promise():
    each, share = central.per_machine(1.0, 1e-5, 10)
    assert 0.1 <= each < 1
    assert share == 1e-5 / 20
    assert central.per_machine(1.0, 1e-5, 1)[0] == pytest.approx(1.0, rel=2e-2)


def test_noise_is_the_published_formula():
    budget = central.Budget(0.5, 1e-6, 0.001, 0.99)
    assert budget.regulariser == pytest.approx(2 * 5 / (0.999 * 0.5 * 0.01))
    tail = 1 + math.sqrt(2 * math.log(1 / (0.999 * 1e-6)))
    assert budget.linear_std(100) == pytest.approx(2 / 100 * tail / (0.999 * 0.5 * 0.99))
    assert budget.output_std(100, 1e-4) > 2 * 100 * 1e-4 / budget.regulariser


@pytest.mark.parametrize("epsilon", [0.5, 5.0, 12.0, 60.0])
def test_linear_noise_keeps_its_share_of_a_large_epsilon(epsilon: float):
    """The loss (2 u·b + |u|²)/(2σ²) for |u| = 2L/n and u·b at its δ₁ quantile.

    The published σ₁ is too small beyond ε₃ = 2(1 + t).
    """
    budget = central.Budget(epsilon, 1e-6, 0.001, 0.99)
    share, n = 0.999 * epsilon * 0.99, 100
    std, moved = budget.linear_std(n), 2 / n
    quantile = std * math.sqrt(2 * math.log(1 / (0.999 * 1e-6)))
    assert (2 * moved * quantile + moved**2) / (2 * std**2) <= share * (1 + 1e-12)
