"""PINE: messages that were changed on the way, anywhere, are refused and crash nothing."""

import random

import numpy as np
import pytest

from tests.changed_bytes import changed
from train_distributed.proofs.field import InvalidShare
from train_distributed.proofs.pine import NONCE_BYTES, SHARES, Pine

KEY = bytes(range(32))
SMALL = Pine.for_bound(dimension=20, norm_bound=1000)


def take(sent: list[bytes], honest: list | None, nonce: bytes, message: bytes | None) -> None:
    """Both aggregators' steps with what was sent, and with honest states where there are some."""
    made = honest or [
        SMALL.prepare_init(KEY, j, nonce, sent[0], sent[1 + j]) for j in range(SHARES)
    ]
    prepare_shares = sent[3:5] if honest else [share for _, share in made]
    message = SMALL.prepare_message(*prepare_shares) if message is None else message
    for state, _ in made:
        SMALL.prepare_next(state, message)


def attack(count: int, seed: int) -> None:
    """Changes one message of one report, again and again: all are refused, none crashes."""
    draw = random.Random(seed)
    vector = np.arange(20, dtype=np.int64) * 10
    nonce = bytes(NONCE_BYTES)
    public, shares = SMALL.shard(vector, nonce)
    honest = [SMALL.prepare_init(KEY, j, nonce, public, share) for j, share in enumerate(shares)]
    good = [public, *shares, honest[0][1], honest[1][1]]
    good.append(SMALL.prepare_message(good[3], good[4]))
    for _ in range(count):
        which = draw.randrange(6)
        bad = list(good)
        bad[which] = changed(good[which], draw)
        with pytest.raises(InvalidShare):
            take(bad, honest if which >= 3 else None, nonce, bad[5] if which == 5 else None)


def test_a_report_changed_anywhere_is_refused():
    attack(200, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_100_000_changed_reports_are_refused(seed: int):
    attack(25_000, seed)
