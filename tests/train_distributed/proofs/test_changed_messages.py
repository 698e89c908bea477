"""PINE: messages that were changed on the way, anywhere, are refused and crash nothing."""

import numpy as np
import pytest

from train_distributed.proofs.field import InvalidShare
from train_distributed.proofs.pine import NONCE_BYTES, SHARES, Pine

KEY = bytes(range(32))
SMALL = Pine.for_bound(dimension=20, norm_bound=1000)


def mutated(octets: bytes, generator: np.random.Generator) -> bytes:
    """Other bytes: one bit flipped, one byte cut or added, or a word replaced."""
    place, kind = int(generator.integers(len(octets))), int(generator.integers(8))
    if kind == 0:
        return octets[:place] + octets[place + 1 :]
    if kind == 1:
        return octets[:place] + generator.bytes(1) + octets[place:]
    if kind == 2 and octets[place : place + 8] != bytes([255] * 8)[: len(octets) - place]:
        return octets[:place] + bytes([255] * 8)[: len(octets) - place] + octets[place + 8 :]
    flipped = octets[place] ^ 1 << int(generator.integers(8))
    return octets[:place] + bytes([flipped]) + octets[place + 1 :]


def take(sent: list[bytes], honest: list | None, nonce: bytes, message: bytes | None) -> None:
    """Both aggregators' steps with what was sent, and with honest states where there are some."""
    made = honest or [
        SMALL.prepare_init(KEY, j, nonce, sent[0], sent[1 + j]) for j in range(SHARES)
    ]
    prepare_shares = sent[3:5] if honest else [share for _, share in made]
    message = message or SMALL.prepare_message(*prepare_shares)
    for state, _ in made:
        SMALL.prepare_next(state, message)


def attack(count: int, seed: int) -> None:
    """Changes one message of one report, again and again: all are refused, none crashes."""
    generator = np.random.default_rng(seed)
    vector = np.arange(20, dtype=np.int64) * 10
    nonce = bytes(NONCE_BYTES)
    public, shares = SMALL.shard(vector, nonce)
    honest = [SMALL.prepare_init(KEY, j, nonce, public, share) for j, share in enumerate(shares)]
    good = [public, *shares, honest[0][1], honest[1][1]]
    good.append(SMALL.prepare_message(good[3], good[4]))
    for _ in range(count):
        which = int(generator.integers(6))
        bad = list(good)
        bad[which] = mutated(good[which], generator)
        with pytest.raises(InvalidShare):
            take(bad, honest if which >= 3 else None, nonce, bad[5] if which == 5 else None)


def test_a_report_changed_anywhere_is_refused():
    attack(300, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_100_000_changed_reports_are_refused(seed):
    attack(25_000, seed)
