"""Mechanisms on the wire: exact sums, unbiased means, honest views, refused messages."""

import math

import numpy as np
import pytest
import torch

from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.research.protection import mechanisms as protect
from train_distributed.research.protection.paillier import KeyPair, Packing

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
    assert out.bytes_per_client > 0
    assert out.seconds_per_client > 0


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
    pair = KeyPair.generate(numbers, KEY_BITS)
    words = numbers.encode(np.arange(3.0))
    one, two = pair.encrypt(words), pair.encrypt(words)
    assert one != two
    total = numbers.decode(pair.decrypt(pair.add([one, two]), 3, 2))
    assert np.array_equal(total, 2 * np.arange(3.0))
    other = KeyPair.generate(numbers, KEY_BITS)
    assert np.array_equal(pair.decrypt(one, 3, 1), words)
    if pair.public.nsquare < other.public.nsquare:
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
    w = models(clients=4, m=20_000)
    mechanism = protect.Randomisation(0.25)
    noise = mechanism.exchange(w, torch.Generator().manual_seed(1)).mean - w.mean(0)
    expected = 0.25 / 4
    assert float(noise.var()) == pytest.approx(expected, rel=4 * (2 / 20_000) ** 0.5)
    mean = mechanism.mean(w, torch.Generator().manual_seed(1))
    assert torch.equal(mean, mechanism.exchange(w, torch.Generator().manual_seed(1)).mean)
    plain = protect.Unprotected().exchange(w, None)
    assert mechanism.exchange(w, None).bytes_per_client == plain.bytes_per_client == 8 * 20_000


@pytest.mark.parametrize("keep", [0.02, 0.3, 0.9])
def test_sparsification_is_unbiased(keep):
    """The mean error of 400 draws of 500 parameters, each within its own standard error."""
    w = models(clients=1, m=500)[0]
    generator = torch.Generator().manual_seed(2)
    mechanism = protect.Sparsification(keep)
    drawn = torch.stack([mechanism.mean(w[None], generator) for _ in range(400)])
    error = (drawn - w.float().double()).mean()
    standard = (w.square() * (1 - keep) / keep).sum().sqrt() / 500 / 400**0.5
    assert abs(error) <= 4 * standard
    biased = (keep * drawn - w).mean()  # without the division by ρ the test must fail
    assert abs(biased - error) > 0
    weighted = ((drawn - w) * w.sign()).mean()
    shrunk = ((keep * drawn - w) * w.sign()).mean()
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
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_ten_clients_send_7690_parameters_under_a_2048_bit_key():
    w = models(clients=10, m=7690)
    out = protect.Paillier().exchange(w, None)
    assert [round(10 * v * 2**32) for v in out.mean.tolist()] == integer_sum(w)
    decrypting = out.seconds_per_client
    assert 10 * out.seconds_per_client + out.seconds_server + decrypting < 360
    shares = protect.Shares().exchange(w, None)
    assert torch.equal(shares.mean, out.mean)
