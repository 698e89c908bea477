"""Mechanisms on the wire: exact sums, unbiased means, honest views; the attacker on these views."""

import math

import numpy as np
import pytest
import torch

from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.research.protection import mechanisms as protect
from train_distributed.research.protection.inversion import Observation, invert, rank_one
from train_distributed.research.protection.paillier import KeyPair, Packing
from train_distributed.research.protection.training import TargetHead
from train_distributed.research.protection.training import TargetNetwork as Network

pytest.importorskip("phe")
WIDE = FixedPoint(step=2.0**-32, bound=64.0, parties=10)
KEY_BITS = 512  # small: these tests are about arithmetic, not about secrecy


def models(clients=10, m=200, seed=0):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(clients, m, generator=generator, dtype=torch.float64)
    drawn[0, :4] = torch.tensor([64.0, -64.0, 0.0, -(2.0**-33)])  # the ends, and half a step
    drawn[-1, :2] = torch.tensor([64.0, -64.0])
    return drawn


def integer_sum(w):
    """Rounded to whole steps of 2^-32 and added as Python integers."""
    columns = zip(*[[round(v * 2**32) for v in row] for row in w.tolist()], strict=True)
    return [sum(column) for column in columns]


@pytest.mark.parametrize(
    "mechanism", [protect.Paillier(KEY_BITS), protect.Shares(), protect.Shares(servers=2)]
)
def test_the_wire_gives_the_exact_fixed_point_sum(mechanism):
    w = models()
    out = mechanism.exchange(w, None)
    assert [round(10 * v * 2**32) for v in out.mean.tolist()] == integer_sum(w)
    assert torch.equal(out.mean, mechanism.mean(w, None))
    assert torch.equal(out.mean, mechanism.views(w, None)["sum"][0].values)
    assert min(out.bytes_per_client, out.seconds_per_client) > 0


def test_extreme_slots_do_not_carry():
    numbers = FixedPoint(step=2.0**-8, bound=4.0, parties=3)
    packing = Packing(numbers, 64)
    assert (packing.slot_bits, packing.slots) == (13, 4)  # 3 · 2 · 1024 = 6144 < 2^13
    low, high = np.full(9, -4.0), np.full(9, 4.0)
    for rows in ((low, low, low), (high, high, high), (high, low, high), (low,)):
        packed = [packing.pack(numbers.encode(row)) for row in rows]
        total = [sum(each) for each in zip(*packed, strict=True)]
        assert max(total) < 2**62
        words = packing.unpack(total, 9, len(rows))
        assert np.array_equal(numbers.decode(words), sum(rows))


def test_a_ciphertext_hides_equal_plaintexts_and_needs_the_private_key():
    numbers = FixedPoint(step=2.0**-8, bound=4.0, parties=2)
    pair, other = sorted(
        (KeyPair.generate(numbers, KEY_BITS) for _ in range(2)), key=lambda key: key.public.n
    )
    words = numbers.encode(np.arange(3.0))
    one, two = pair.encrypt(words), pair.encrypt(words)
    assert one != two
    total = numbers.decode(pair.decrypt(pair.add([one, two]), 3, 2))
    assert np.array_equal(total, 2 * np.arange(3.0))
    assert np.array_equal(pair.decrypt(one, 3, 1), words)
    assert not np.array_equal(other.decrypt(one, 3, 1), words)


def test_the_quick_mask_is_an_nth_power_and_any_of_them():
    """With p = 5 and q = 7 there are 24 powers r^35 modulo 35²: all of them come, equally often."""
    from phe import paillier

    public = paillier.PaillierPublicKey(35)
    packing = Packing(FixedPoint(step=1.0, bound=1.0, parties=1), 16)
    pair = KeyPair(public, paillier.PaillierPrivateKey(public, 5, 7), packing)
    powers = {pow(r, 35, 35**2) for r in range(1, 35) if math.gcd(r, 35) == 1}
    drawn = [pair.mask() for _ in range(4800)]
    assert len(powers) == 24
    assert set(drawn) == powers
    assert max(abs(drawn.count(power) - 200) for power in powers) < 5 * math.sqrt(200)


def test_noise_has_its_variance_and_costs_no_bytes():
    w, mechanism = models(clients=4, m=20_000), protect.Randomisation(0.25)
    sent = mechanism.exchange(w, torch.Generator().manual_seed(1))
    noise = sent.mean - w.mean(0)
    assert float(noise.var()) == pytest.approx(0.25 / 4, rel=4 * (2 / 20_000) ** 0.5)
    assert torch.equal(mechanism.mean(w, torch.Generator().manual_seed(1)), sent.mean)
    plain = protect.Unprotected().exchange(w, None)
    assert sent.bytes_per_client == plain.bytes_per_client == 8 * 20_000


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.9])
def test_sparsification_is_unbiased(keep):
    """The mean error of 400 draws of 500 parameters, each within its own standard error."""
    w = models(clients=1, m=500)[0]
    generator = torch.Generator().manual_seed(2)
    mechanism = protect.Sparsification(keep)
    drawn = torch.stack([mechanism.mean(w[None], generator) for _ in range(400)])
    standard = (w.square() * (1 - keep) / keep).sum().sqrt() / 500 / 400**0.5
    assert abs((drawn - w.float().double()).mean()) <= 4 * standard
    weighted = ((drawn - w) * w.sign()).mean()
    shrunk = ((keep * drawn - w) * w.sign()).mean()  # without the division by ρ
    assert abs(weighted) <= 4 * standard < abs(shrunk)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.3, 0.9999, 1.0])
def test_a_sparse_message_is_read_back_and_shows_exact_values(keep):
    w = models(clients=1, m=3001)[0]
    mechanism = protect.Sparsification(keep)
    message = mechanism.message(w, torch.Generator().manual_seed(3))
    values, known = mechanism.read(message, 3001)
    sent = int(known.sum())
    assert len(message) == 376 + 4 * sent
    assert abs(sent - 3001 * keep) <= 5 * (3001 * keep * (1 - keep)) ** 0.5
    assert torch.equal(values == 0, ~known | (w == 0))
    assert torch.allclose(values[known], w[known], rtol=1e-6)
    (view,) = mechanism.views(w[None], torch.Generator().manual_seed(3))["message"]
    assert torch.equal(view.known, known)


def test_messages_of_exact_sums_look_nothing_like_the_model():
    w = models(clients=2, m=2000)
    for mechanism in (protect.Shares(), protect.Paillier(KEY_BITS)):
        for k, view in enumerate(mechanism.views(w, None)["message"]):
            assert view.clients == (k,)
            assert abs(float(torch.corrcoef(torch.stack([view.values, w[k]]))[0, 1])) < 0.15


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: protect.Sparsification(1.5), r"rho must be in \[0, 1\]"),
        (lambda: protect.Randomisation(-1.0), "variance must be in"),
        (lambda: KeyPair.generate(WIDE, 32), "key_bits must be >= 45, the message space"),
        (lambda: KeyPair.generate(WIDE, 1001), "key_bits must be a positive multiple of 16"),
        (lambda: protect.Shares().mean(torch.tensor([[65.0]]), None), r"\|x\| <= bound=64.0"),
        (lambda: invert(TargetHead(3, 2), None, 0, torch.Generator()), "batch must be >= 1"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def seen(gradient, start):
    return Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))


def case(n, dim, seed=0, classes=10):
    """A head's target, n rows, their labels one-hot, its start and the rows' gradient there."""
    target, generator = TargetHead(dim, classes), torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    x /= x.norm(dim=1, keepdim=True)
    y = target.one_hot(torch.randint(classes, (n,), generator=generator))
    start = target.start(generator)
    return target, x, y, start, target.gradient(start, x, y)


@pytest.mark.parametrize("client", range(3))
def test_one_gradient_of_a_head_gives_the_record_away(client):
    """Through a real update w' = w − step · gradient, as float64 and as float32."""
    target, x, _, start, gradient = case(1, 768, seed=client)
    generator, step = torch.Generator().manual_seed(client), 2.0
    updated = start - step * gradient
    exact = protect.View((0,), updated, torch.ones_like(updated, dtype=torch.bool))
    for view in (exact, protect.Unprotected().views(updated[None], None)["message"][0]):
        guess = invert(target, Observation.of(view, start, step), 1, generator)
        assert float((guess - x).norm() / x.norm()) <= 1e-5


def test_sparse_messages_are_completed_and_noise_defeats_the_attack():
    target, x, _, start, gradient = case(1, 200)
    generator, updated = torch.Generator().manual_seed(0), start - gradient

    def similarity(mechanism):
        view = mechanism.views(updated[None], torch.Generator().manual_seed(1))["message"][0]
        guess = invert(target, Observation.of(view, start, 1.0), 1, generator)
        return target.similarity(guess[0], x[0])

    assert similarity(protect.Sparsification(0.7)) > 0.999
    assert similarity(protect.Sparsification(0.02)) < 0.5
    assert similarity(protect.Randomisation(0.003**2)) > 0.99
    assert similarity(protect.Randomisation(1.0)) < 0.5
    assert similarity(protect.Sparsification(0.0)) == 0


def test_batches_are_attacked_inside_the_gradients_column_space():
    found = []
    for n, dim, seed in ((4, 60, 0), (4, 60, 1), (8, 3, 0)):  # fewer features than classes, too
        target, x, _, start, gradient = case(n, dim, seed)
        generator = torch.Generator().manual_seed(seed)
        guess = invert(target, seen(gradient, start), n, generator)
        assert guess.shape == (n, dim)
        assert guess.isfinite().all()
        found.append(target.recovered(guess, x, 0.9).double().mean())
    assert (found[0] + found[1]) / 2 >= 0.5
    nan_and_right = torch.stack([x[0] * math.nan, x[0]])
    assert target.recovered(nan_and_right, x[:1], 0.9).tolist() == [True]
    assert target.recovered(nan_and_right[:1], x[:1], 0.9).tolist() == [False]


def test_gradients_agree_with_autograd():
    target, x, y, start, gradient = case(5, 9, classes=4)
    general = super(TargetHead, target).gradient(start, x, y)
    assert torch.allclose(gradient, general, atol=1e-14)
    assert torch.allclose(target.bias(general), general.view(10, 4)[0])
    assert rank_one(target, seen(general, start)).shape == (1, 9)


def test_an_image_is_recovered_from_an_untrained_network():
    pytest.importorskip("skimage")
    target, generator = Network(1, 12, 10), torch.Generator().manual_seed(0)
    x = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    x[..., 3:9, 5:8] = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    start = target.start(generator)
    gradient = target.gradient(start, x, target.one_hot(torch.tensor([7])))
    guess = invert(target, seen(gradient, start), 1, generator)
    assert target.similarity(guess[0], x[0]) > 0.9
    noise = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
    blurred = invert(target, seen(gradient + 10 * noise, start), 1, generator)
    assert target.similarity(blurred[0], x[0]) < 0.9
