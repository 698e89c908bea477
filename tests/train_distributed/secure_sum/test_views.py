"""What an adversary sees is the same for any two input sets with the same sum.

Constructively: all randomness is recorded; the inputs are changed; the streams that the adversary
cannot expand are replaced by exactly the difference; every byte it sees stays the same.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from tests.train_distributed.secure_sum.randomness import REAL_STREAM, Recorded, Words
from train_distributed.secure_sum import keys, prg, secagg_user
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.secagg import SERVER, pair_seed

D = 6


def recorded(pads: dict[bytes, Words] | None = None) -> Recorded:
    return Recorded((keys, secagg_user), pads or {})


def _words(seed: bytes) -> Words:
    return np.concatenate([words.copy() for _, words in REAL_STREAM(seed, D)])


@pytest.fixture
def fixed_keys() -> dict[int, PrivateKeys]:
    names = [*range(6), SERVER]
    return {n: PrivateKeys(prg.derive(b"%d" % n, b"s"), prg.derive(b"%d" % n, b"o")) for n in names}


def _secagg_run(make: Callable, keys: dict[int, PrivateKeys], inputs: Words, dropped: int):
    """Every byte that the server receives or sends, the total, and the setup and users."""
    parties = make(inputs, keys=keys, nonce=b"n" * 32, minimum=3)
    sent = [user.start() for user in parties.users]
    pairs = {
        (i, j): pair_seed(
            parties.setup.session.digest,
            parties.users[i]._masking,
            parties.users[j]._masking.public_key().public_bytes_raw(),
            i,
            j,
        )
        for i, j in itertools.combinations(range(len(inputs)), 2)
    }
    for message in sent:
        parties.server.receive(message)
    for stage in range(4):
        messages = parties.server.advance()
        for i, message in sorted(messages.items()):
            sent.append(message)
            if i == dropped and stage >= 1:
                continue
            sent.append(parties.users[i].receive(message))
            parties.server.receive(sent[-1])
    return sent, parties.server.finish().total, pairs


def test_the_server_of_secagg_sees_the_same_for_inputs_of_equal_sum(make_secagg, fixed_keys):
    """6 users: 5 drops out after sharing keys, 4 colludes with the server, 0 to 3 are honest."""
    corrupt, dropped, honest = 4, 5, range(4)
    first = np.random.default_rng(2).integers(0, 2**64, (6, D), np.uint64)
    second = first.copy()
    second[:3] = np.random.default_rng(3).integers(0, 2**64, (3, D), np.uint64)
    second[3] += first[:3].sum(0) - second[:3].sum(0)

    def view(inputs: Words, recorded: Recorded):
        with pytest.MonkeyPatch.context() as patch:
            recorded.install(patch)
            return _secagg_run(make_secagg, fixed_keys, inputs, dropped)

    plain, total, pairs = view(first, recorded())
    # Along the path 0 - 1 - 2 - 3 of honest survivors, pass the differences on.
    pads, carried = {}, np.zeros(D, np.uint64)
    for i, j in itertools.pairwise(honest):
        carried = carried + first[i] - second[i]
        pads[pairs[i, j]] = _words(pairs[i, j]) + carried
    assert all(corrupt not in pair and dropped not in pair for pair in itertools.pairwise(honest))
    replaced, same_total, _ = view(second, recorded(pads))
    assert replaced == plain
    assert np.array_equal(same_total, total)
    assert np.array_equal(total, first[:5].sum(0))
    assert view(second, recorded())[0] != plain
