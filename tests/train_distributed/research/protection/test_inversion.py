"""The attacker on heads and on images."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from embed import PublicTransform
from pretrain.sources import open_images
from tests.benchmarks.bench_protection import success
from train_distributed.research.protection.inversion import Observation, invert, rank_one
from train_distributed.research.protection.mechanisms import (
    Randomisation,
    Sparsification,
    Unprotected,
    View,
)
from train_distributed.research.protection.training import (
    FederationOptions,
    TargetHead,
    TargetNetwork,
    head_federation,
    image_federation,
)
from train_distributed.simulation.digits import pixel_digits


def rows(n, dim, seed=0, classes=10):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True), torch.randint(classes, (n,), generator=generator)


def seen(gradient, start):
    return Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))


def attacked(n, dim, seed=0):
    """A head's target, n rows, and what an attacker makes of their gradient."""
    target, (x, y) = TargetHead(dim, 10), rows(n, dim, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    start = target.start(generator)
    gradient = target.gradient(start, x, target.one_hot(y))
    return target, x, invert(target, seen(gradient, start), n, generator)


@pytest.mark.parametrize("client", range(5))
def test_one_gradient_of_a_head_gives_the_record_away(client):
    """Through a real update w' = w − step · gradient, as float64 and as float32."""
    target = TargetHead(768, 10)
    x, y = rows(1, 768, seed=client)
    generator = torch.Generator().manual_seed(client)
    start, step = target.start(generator), 2.0
    updated = start - step * target.gradient(start, x, target.one_hot(y))
    everything = torch.ones_like(updated, dtype=torch.bool)
    guess = invert(
        target, Observation.of(View((0,), updated, everything), start, step), 1, generator
    )
    assert float((guess - x).norm() / x.norm()) <= 1e-5
    view = Unprotected().views(updated[None], None)["message"][0]
    guess = invert(target, Observation.of(view, start, step), 1, generator)
    assert float((guess - x).norm() / x.norm()) <= 1e-5


def test_sparse_messages_are_completed_and_noise_defeats_the_attack():
    target = TargetHead(200, 10)
    x, y = rows(1, 200)
    generator = torch.Generator().manual_seed(0)
    start = target.start(generator)
    updated = start - target.gradient(start, x, target.one_hot(y))

    def similarity(mechanism):
        view = mechanism.views(updated[None], torch.Generator().manual_seed(1))["message"][0]
        guess = invert(target, Observation.of(view, start, 1.0), 1, generator)
        return target.similarity(guess[0], x[0])

    assert similarity(Sparsification(0.7)) > 0.999
    assert similarity(Sparsification(0.02)) < 0.5
    assert similarity(Randomisation(0.003**2)) > 0.99
    assert similarity(Randomisation(1.0)) < 0.5
    assert similarity(Sparsification(0.0)) == 0


def test_a_batch_of_four_is_recovered_inside_the_gradients_column_space():
    found = []
    for seed in range(2):
        target, x, guess = attacked(4, 60, seed)
        found += target.recovered(guess, x, 0.9).tolist()
    assert np.mean(found) >= 0.5


def test_a_head_of_fewer_features_than_classes_is_attacked_in_batches():
    _, _, guess = attacked(8, 3)
    assert guess.shape == (8, 3)
    assert guess.isfinite().all()


def test_gradients_agree_with_autograd():
    target = TargetHead(9, 4)
    x, y = rows(5, 9, classes=4)
    start = target.start(torch.Generator().manual_seed(0))
    general = super(TargetHead, target).gradient(start, x, target.one_hot(y))
    assert torch.allclose(target.gradient(start, x, target.one_hot(y)), general, atol=1e-14)
    r = general.view(10, 4)
    assert torch.allclose(target.bias(general), r[0])
    assert rank_one(target, seen(general, start)).shape == (1, 9)


def test_an_image_is_recovered_from_an_untrained_network():
    pytest.importorskip("skimage")
    target = TargetNetwork(1, 12, 10)
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    x[..., 3:9, 5:8] = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    y = torch.tensor([7])
    start = target.start(generator)
    gradient = target.gradient(start, x, target.one_hot(y))
    guess = invert(target, seen(gradient, start), 1, generator)
    assert target.similarity(guess[0], x[0]) > 0.9
    noise = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
    blurred = invert(target, seen(gradient + 10 * noise, start), 1, generator)
    assert target.similarity(blurred[0], x[0]) < 0.9


def test_the_networks_size():
    assert TargetNetwork(1, 28, 10).parameters == 312 + 2 * 3612 + 5890
    assert TargetNetwork(3, 32, 10).parameters == 912 + 2 * 3612 + 7690


def test_similarities():
    pytest.importorskip("skimage")
    x = torch.rand(1, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert TargetNetwork(1, 12, 10).similarity(x, x) == pytest.approx(1)
    head, ones = TargetHead(3, 2), torch.ones(3, dtype=torch.float64)
    assert head.similarity(ones, torch.tensor([1.0, 0, 0]).double()) == pytest.approx(3**-0.5)
    assert head.recovered(torch.stack([ones / 0, ones]), ones[None], 0.9).tolist() == [True]
    assert head.recovered(ones[None] * torch.nan, ones[None], 0.9).tolist() == [False]
    with pytest.raises(ValueError, match="batch must be >= 1"):
        invert(head, seen(torch.zeros(8).double(), torch.zeros(8)), 0, torch.Generator())


@pytest.mark.slow
def test_digits_are_recovered_from_single_gradients_of_untrained_networks(reference_data):
    """20 writers' digits, a random start each."""
    pytest.importorskip("skimage")
    images = open_images(str(reference_data / "data" / "mnist_writers.npz"))
    federation = image_federation(
        images, FederationOptions(clients=20, rows=500, step=0.1, rounds=0), test_rows=500
    )
    found, _ = success(federation, 0.9, attacks=1, seed=0)
    assert found.hits.size == 20
    assert found.rate >= 0.9


def test_rates_of_batches_are_between_none_and_all(tmp_path):
    public, private = pixel_digits()
    transform = PublicTransform.fit(public, components=16)
    federation = head_federation(
        private, public, transform, FederationOptions(clients=2, rows=20, step=1.0, rounds=0)
    )
    single, _ = success(federation, 0.9, attacks=2, seed=0)
    assert single.rate == 1
    # Of 8 records all are found on some processors, of 16 a tenth to a third with each of 4 seeds.
    batches = replace(federation, options=replace(federation.options, batch=16))
    some, _ = success(batches, 0.9, attacks=1, seed=0)
    assert some.hits.shape == (2, 1, 1, 16)
    assert 0 < some.rate < 1
