"""Poisoned users of one federation, for `bench_poison.py`: vectors of allowed length, and models.

`Poisoned` holds what 1,000 users of a set send, in steps, as the deployed encoding makes it, and
fits and tests the model of any sum of such vectors. Of two sums it is the second one: to the first
the poisoners have sent the longest vector against the mean of all rows.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import second_moments
from pretrain.datasets import TEST, TRAIN
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.one_shot.statistic import NoisedSum, submissions
from train_distributed.partition import split
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import SERVERS, Privacy

METHOD, PORTION, SEEN, STEPS = "discriminant", 100, 5000, 16


@dataclass(frozen=True)
class Poisoned:
    """A federation of users with equally many rows, of whom the first are poisoners."""

    state: ReleaseState  # before its sum, with the centre that the first sum has found
    options: dict[str, Any]  # of the method
    encoder: DiscreteGaussian
    bound: float  # length that a vector may have, scaled
    sent: np.ndarray  # (users, D) int64, by honest users, without noise
    rows: int  # N of all users
    train: tuple[Tensor, Tensor]  # rows and classes that a poisoner knows: some of all users'
    test: tuple[Tensor, Tensor]

    @classmethod
    def of(
        cls,
        sets: tuple[EmbeddingSet, EmbeddingSet],
        privacy: Privacy,
        *,
        users: int,
        seed: int,
        options: dict[str, Any] | None,
        poisoners: int = 0,
    ) -> "Poisoned":
        """Users that share the training rows at random, with the transform of the public rule.

        Options that are None are those of `federation init`.
        """
        private, public = sets
        train = private.split == TRAIN
        draw = torch.Generator().manual_seed(seed)
        parts = split(torch.from_numpy(private.labels[train]), users, "iid", generator=draw)
        classes = len(private.declared_classes)
        held_by = "strangers" if options is None else "parties"
        transform = PublicTransform.fit(public)
        request = ReleaseRequest(
            embeddings=FederationSize(sizes=parts.counts, num_classes=classes, held_by=held_by),
            method=METHOD,
            privacy=privacy,
            transform=transform,
            options=options or {},
        )
        some = np.random.default_rng(seed).permutation(np.flatnonzero(train))[:SEEN]
        held = EmbeddingUsers(private, transform, parts)

        def at(state: ReleaseState, encoder: DiscreteGaussian) -> "Poisoned":
            if privacy.noise_by == "servers":
                steps = encoder.norm_bounds(state.statistic, parts.counts)
                bound = max(steps) * float(encoder.step)
            else:  # nobody looks
                bound = state.statistic.norm_bounds(parts.counts).max().item()
            sent = []
            for chunk in held.chunks():
                for part in chunk.portions(PORTION):
                    made = submissions(state.statistic, state.rows(part), encoder.grid)
                    sent += [encoder.encode(each.numpy()).view(np.int64) for each in made]
            return cls(
                state,
                request.settings.options,
                encoder,
                bound,
                np.stack(sent),
                int(parts.counts.sum()),
                _rows(private, state, transform, np.sort(some)),
                _rows(private, state, transform, np.flatnonzero(private.split == TEST)),
            )

        encoders = request.planned(discrete=True).integers
        found = at(ReleaseState(request.built), encoders[0])
        if len(encoders) == 1:
            return found
        others = found.honest(poisoners)
        total = others + poisoners * found.vector(-found.decoded(others))
        parties = SERVERS if privacy.noise_by == "servers" else users
        return at(found.after(found.decoded(found.noised(total, parties))), encoders[1])

    @property
    def longest(self) -> float:
        """Longest vector of an honest user, over the bound."""
        lengths = (torch.linalg.vector_norm(self.decoded(each)).item() for each in self.sent)
        return max(lengths) / self.bound

    def honest(self, poisoners: int) -> np.ndarray:
        """(D,) int64 sum of all others' vectors."""
        return self.sent[poisoners:].sum(0)

    def decoded(self, words: np.ndarray) -> Tensor:
        """(D,) float64 scaled, of (D,) int64."""
        return self.encoder.decode(words.view(np.uint64))

    def vector(self, direction: Tensor, times: float = 1.0) -> np.ndarray:
        """(D,) int64 vector in this scaled direction, so many times as long as the bound allows."""
        unit = (direction / torch.linalg.vector_norm(direction)).numpy()
        return np.trunc(unit * (times * self.bound) / self.encoder.step).astype(np.int64)

    def noised(self, words: np.ndarray, parties: int) -> np.ndarray:
        """(D,) int64 with the noise of so many parties, from the operating system."""
        return self.encoder.noised(words.view(np.uint64), parties).view(np.int64)

    def accuracy(self, noised: np.ndarray) -> float:
        """Per cent of the test rows that the model of an opened (D,) int64 sum has right."""
        rows, classes = self.test
        right = (rows @ self.weights(self.decoded(noised))).argmax(1) == classes
        return 100 * right.double().mean().item()

    def weights(self, total: Tensor) -> Tensor:
        """(d, K) of a decoded, noised sum."""
        return self.after(total).fitted().weights

    def after(self, total: Tensor) -> ReleaseState:
        """State after a decoded, noised sum."""
        return self.state.advance(total, self.rows, self.encoder.noise_std(len(self.sent)))

    def directions(self) -> Iterator[tuple[str, Tensor]]:
        """(D,) scaled directions that may be bad for the model, by what they do."""
        statistic, planned = self.state.statistic, self.state.planned
        scale, q = statistic.scale, planned.dim - 1
        assert planned.transform is not None
        size = planned.dim * planned.num_classes
        zero = torch.zeros(statistic.dimension, dtype=torch.float64)
        total = self.decoded(self.honest(0)) / statistic.scale
        honest = statistic.restored(NoisedSum(total, self.rows, 1e-9)).total * scale
        sums = honest[:size].unflatten(0, (q + 1, -1))
        means = sums[1:] * planned.transform.constant / sums[0]
        signal = means - means.mean(1, keepdim=True)

        def of_sums(features: Tensor, counts: Tensor | float = 0.0) -> Tensor:
            block = torch.zeros_like(sums)
            block[1:], block[0] = features, counts
            return torch.cat([block.flatten(), zero[size:]])

        signs = torch.tensor([(-1.0) ** k for k in range(sums.shape[1])], dtype=torch.float64)
        yield "all classes pushed back to their mean", of_sums(-signal)
        yield "every class towards the next", of_sums(signal.roll(1, 1) - signal)
        for k in range(2):
            alone = torch.zeros_like(signal)
            alone[:, k] = signal[:, k]
            yield f"class {k} turned round", of_sums(-alone)
            yield f"class {k} as class {k + 1}", of_sums(alone.roll(1, 1))
            uncounted = -(torch.arange(len(signs)) == k).double()
            yield f"no rows of class {k}", of_sums(0 * signal, uncounted)
        yield "counts of every other class", of_sums(0 * signal, signs)
        between = torch.linalg.eigh(signal @ signal.T).eigenvectors[:, -1]
        yield "best direction, by turns", of_sums(torch.outer(between, signs))
        if statistic.dimension > size:
            moment = second_moments(between[None, None], counts=torch.tensor([1]))[0]
            both = torch.cat([zero[:size], moment]) * scale
            yield "best direction looks wide", both
            yield "best direction looks narrow", -both
            yield "all moments down", -torch.cat([zero[:size], honest[size:]])

    def descended(self, start: Tensor, poisoners: int) -> Tensor:
        """(D,) direction found by the gradient of the model's mistakes on other users' rows.

        Its user knows the code, the sum of all others and some of their rows, but not the noise.
        """
        others = self.honest(poisoners)
        rows, classes = self.train
        direction, best = start / torch.linalg.vector_norm(start), (math.inf, start)
        for _ in range(STEPS):
            total = self.decoded(self.noised(others, SERVERS)) + poisoners * self.bound * direction
            total.requires_grad_()
            scores = rows @ self.weights(total)
            own = scores.gather(1, classes[:, None])[:, 0]
            rival = scores.scatter(1, classes[:, None], -math.inf).max(1).values
            right = torch.sigmoid((own - rival) / (0.2 * scores.detach().std())).mean()
            best = min(best, (right.item(), direction), key=lambda found: found[0])
            (gradient,) = torch.autograd.grad(right, total)
            direction = direction - 0.5 * gradient / torch.linalg.vector_norm(gradient)
            direction = direction / torch.linalg.vector_norm(direction)
        return best[1]


def _rows(
    private: EmbeddingSet, state: ReleaseState, transform: PublicTransform, places: np.ndarray
) -> tuple[Tensor, Tensor]:
    """(n, d) float64 rows and (n,) classes, as the model sees them."""
    x = torch.from_numpy(np.array(private.embeddings[places]))
    return state.final_rows(transform(x).double()), torch.from_numpy(
        np.array(private.labels[places])
    )
