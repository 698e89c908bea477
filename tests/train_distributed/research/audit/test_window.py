"""The audit attacks real windows: it has all but one user, and the leader with its noise."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from embed import EmbeddingSet
from tests.train_distributed.secure_sum.window.conftest import Service
from train_distributed import Privacy
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.source import EmbeddingUsers, own_partition
from train_distributed.one_shot.statistic import submissions
from train_distributed.privacy.discrete_gaussian import discrete_gaussian
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.research.audit import Target, WorstCase, attack
from train_distributed.research.audit.target import Claim

PROMISE = Privacy(8.0, 1e-6, noise_by="servers")


@dataclass(frozen=True)
class WindowTarget(Target):
    """One window of class sums; where it is not `honest` the helper leaves its noise out."""

    folder: Path = field(kw_only=True)
    honest: bool = field(kw_only=True)
    numbers: Iterator[int] = field(default_factory=count)

    def opened(self, data: EmbeddingSet) -> Tensor:
        """(D,) the opened sum without the leader's noise."""
        encoder, words, bound = self._words(data)
        folder, users = self.folder / str(next(self.numbers)), self.federation.users
        std = float(encoder.stds_in_steps)
        service = Service.of(folder, [1] * users, words.shape[1], users, bound, std)
        drawn: list[np.ndarray] = []

        def noise(std: float, d: int) -> np.ndarray:
            silent = drawn and not self.honest
            drawn.append(np.zeros(d, int) if silent else discrete_gaussian(std, d))
            return drawn[-1]

        service.noise = noise
        for user, vector in enumerate(words):
            service.taken(user, service.report(user, vector))
        total = service.opened().total.view(np.int64) - drawn[0]  # the leader opens first
        for store in service.stores.values():
            store.close()
        return encoder.decode(total.view(np.uint64))

    def noiseless(self, data: EmbeddingSet) -> Tensor:
        """(D,) what honest users and their sum come to."""
        encoder, words, _ = self._words(data)
        return encoder.decode(words.sum(0).view(np.uint64))

    def claim(self, data: EmbeddingSet) -> Claim:
        """The promise of every report of such a federation."""
        return Claim(PROMISE.epsilon, PROMISE.delta, True)

    def _words(self, data: EmbeddingSet) -> tuple[DiscreteGaussian, np.ndarray, int]:
        """Encoding, (users, D) int64 vectors, and the length that is proven of each."""
        statistic = build_method("discriminant", self.transform, 2, {}).statistic
        users = EmbeddingUsers(data, self.transform, own_partition(data))
        guarantee = Guarantee.of(users.sizes, statistic, PROMISE)
        encoder = DiscreteGaussian.calibrated(statistic, guarantee, users.sizes)
        (chunk,) = users.chunks()
        sent = submissions(statistic, chunk, encoder.grid)
        words = np.stack([encoder.encode(each.numpy()).view(np.int64) for each in sent])
        return encoder, words, max(encoder.norm_bounds(statistic, users.sizes))


def window(folder: Path, *, honest: bool = True) -> WindowTarget:
    """Three users with a row each."""
    return WindowTarget(
        "discriminant", WorstCase(3, 1, 1, 2, PROMISE), folder=folder, honest=honest
    )


def test_the_noise_of_one_server_alone_keeps_the_promise(tmp_path: Path) -> None:
    target = window(tmp_path)
    data = next(iter(target.federation.neighbours())).first
    seen = torch.stack([target.opened(data) - target.noiseless(data) for _ in range(12)])
    encoder, *_ = target._words(data)
    spread = 5 / math.sqrt(2 * seen.numel())
    assert float(seen.std()) == pytest.approx(encoder.local_std, rel=spread)
    bare = window(tmp_path / "bare", honest=False)
    assert torch.equal(bare.opened(data), target.noiseless(data))


@pytest.mark.slow
@pytest.mark.parametrize(("honest", "trials"), [(True, 250), (False, 160)])
def test_real_windows_keep_the_promise_unless_noise_is_left_out(tmp_path, honest, trials) -> None:
    found = attack(window(tmp_path, honest=honest), trials=trials)
    print(f"honest: {honest}, promised {found.claim.epsilon:.2f}, at least {found.epsilon:.2f}")
    assert found.broken is not honest
    assert found.epsilon > 1  # the attack sees something
