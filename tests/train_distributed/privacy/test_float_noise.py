"""Kolmogorov-Smirnov tests of what is drawn, seeded and from the operating system."""

import math
import os

import pytest
import scipy.stats
import torch

from train_distributed.privacy import float_noise

GENERATORS = {"seeded": lambda: torch.Generator().manual_seed(4), "system": lambda: None}
LEVEL = 1e-6  # the system's numbers differ every time: one false alarm in a million runs


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
def test_uniform_and_normal(make):
    uniform = float_noise.uniform((20_000,), make())
    assert 0 < uniform.min() < uniform.max() < 1
    assert scipy.stats.kstest(uniform.numpy(), "uniform").pvalue > LEVEL
    normal = float_noise.normal((2, 10_000), make())
    assert scipy.stats.kstest(normal.flatten().numpy(), "norm").pvalue > LEVEL


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("dimension", [1, 2, 3, 50])
def test_exponential_norm_has_gamma_length_and_uniform_direction(make, dimension):
    vectors = float_noise.exponential_norm((20_000, dimension), make())
    length = vectors.norm(dim=-1)
    assert scipy.stats.kstest(length.numpy(), "gamma", args=(dimension,)).pvalue > LEVEL
    if dimension == 1:
        assert abs(float((vectors > 0).double().mean()) - 0.5) < 0.02
        return
    # On the sphere in R^d, (1 + u_1)/2 is Beta((d-1)/2, (d-1)/2); along any fixed axis too.
    half = (dimension - 1) / 2
    for axis in (torch.eye(dimension)[-1], torch.ones(dimension) / math.sqrt(dimension)):
        cosine = (vectors / length[:, None]) @ axis.double()
        shares = ((1 + cosine) / 2).numpy()
        assert scipy.stats.kstest(shares, "beta", args=(half, half)).pvalue > LEVEL
    # Length and direction are independent.
    assert abs(float(torch.corrcoef(torch.stack([length, vectors[:, 0] / length]))[0, 1])) < 0.05


def test_half_the_noise_fails_the_same_test():
    halved = 0.5 * float_noise.exponential_norm((20_000, 5), torch.Generator().manual_seed(4))
    length = halved.norm(dim=-1).numpy()
    assert scipy.stats.kstest(length, "gamma", args=(5,)).pvalue < LEVEL


def test_a_generator_is_reproducible_and_the_system_is_not():
    seeded = [float_noise.normal((5,), GENERATORS["seeded"]()) for _ in range(2)]
    assert torch.equal(*seeded)
    assert not torch.equal(float_noise.normal((5,), None), float_noise.normal((5,), None))


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_rarest_words_stay_inside_the_open_interval(monkeypatch, byte) -> None:
    monkeypatch.setattr(os, "urandom", lambda count: byte * count)
    assert 0 < float_noise.uniform((3,), None)[0] < 1
    assert float_noise.normal((3,), None).isfinite().all()
