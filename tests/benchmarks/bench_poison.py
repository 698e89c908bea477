"""Poisoners in a federation: what the worst vectors allowed, and longer ones, do to the model.

    python tests/benchmarks/bench_poison.py --embeddings cifar10_lite0 --public tiny_lite0 \
        [--write results/secure_sum/poison.json] [--real]

A share of the users sends one vector, the same each, as long as a proof of length allows: n times
a record, or the users' clip. This is tried without a clip, and with what `federation init` sets.
The direction is the worst of several, tried without noise of their own, and of a descent on the
model's mistakes whose attacker knows the sum of all other users. Noise is discrete and fresh. Of
two sums the first one is poisoned by the vector against the mean of all rows (accuracies without
poisoners are of that centre, too), the second one as above.

With `--real` one window is run instead, with the last options and share: two aggregators in
processes of their own, proofs of all users, and as many liars besides whose vectors are ten times
too long. Then `secagg`, with a hundredth of its users ten times too long: nobody notices. Exit code
1 if a vector that is too long was not refused, or the opened sum is not that of the others.
"""

import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch

import numpy as np
import torch
import tyro
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from heads import second_moments
from pretrain.cli.provenance import provenance
from tests.benchmarks.aggregators import FOLDERS, commands, make_window
from tests.benchmarks.bench_releases import opened, places, request, transformed
from tests.benchmarks.common import DELTA, save, show
from tests.train_distributed.secure_sum.simulate import simulate_sum
from train_distributed.federation.aggregator_client import Aggregators
from train_distributed.federation.documents.certificates import AGREED, trust
from train_distributed.federation.documents.private_keys import read_private
from train_distributed.one_shot.method import ReleaseState
from train_distributed.one_shot.source import EmbeddingUsers
from train_distributed.one_shot.statistic import NoisedSum, submissions
from train_distributed.partition import split
from train_distributed.privacy.mechanism import DiscreteGaussian
from train_distributed.privacy.promise import SERVERS, Privacy
from train_distributed.proofs.pine import Pine
from train_distributed.secure_sum import reports
from train_distributed.secure_sum.keys import PrivateKeys
from train_distributed.secure_sum.reports import make_report
from train_distributed.secure_sum.window import LEADER, Window

TIMES = 10  # as long as allowed
PORTION, SEEN, STEPS = 100, 5000, 16
Options = dict[str, Any]
SHARES = (0.01, 0.1)  # of poisoners
OPTIONS: tuple[Options | None, ...] = ({}, None)  # of the method; None: those of `init`
Sets = tuple[EmbeddingSet, PublicTransform]
USERS, TRIES = 1000, 3


@dataclass(frozen=True)
class Poisoned:
    """A federation of users with equally many rows, of whom the first are poisoners."""

    state: ReleaseState  # before its sum, with the centre that the first sum has found
    options: Options  # of the method
    encoder: DiscreteGaussian
    bound: float  # length that a vector may have, scaled
    sent: np.ndarray  # (users, D) int64, by honest users, without noise
    rows: int  # N of all users
    train: tuple[Tensor, Tensor]  # rows and classes that a poisoner knows: some of all users'
    test: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, sets: Sets, privacy: Privacy, options: Options | None, poisoners: int) -> Self:
        """Users that share the training rows at random; of two sums, the state before the second.

        To the first the poisoners have sent the longest vector against the mean of all rows.
        """
        private, transform = sets
        train, test = places(private)
        draw = torch.Generator().manual_seed(0)
        parts = split(torch.from_numpy(private.labels[train]), USERS, "iid", generator=draw)
        held_by = "strangers" if options is None else "parties"
        classes = len(private.declared_classes)
        given = {"options": options, "held_by": held_by}
        asked = request(transform, parts.counts, classes, privacy, **given)
        some = np.sort(np.random.default_rng(0).permutation(train)[:SEEN])
        held = EmbeddingUsers(private, transform, parts)

        def at(state: ReleaseState, encoder: DiscreteGaussian) -> Self:
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
            known = []
            for rows in (some, test):
                x, y = transformed(private, transform, rows)
                known.append((state.final_rows(x.double()), y))
            total = int(parts.counts.sum())
            return cls(state, asked.settings.options, encoder, bound, np.stack(sent), total, *known)

        encoders = asked.planned(discrete=True).integers
        found = at(ReleaseState(asked.built), encoders[0])
        if len(encoders) == 1:
            return found
        others = found.honest(poisoners)
        total = others + poisoners * found.vector(-found.decoded(others))
        parties = SERVERS if privacy.noise_by == "servers" else USERS
        return at(found.after(found.decoded(found.noised(total, parties))), encoders[1])

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


def directions(poisoned: Poisoned, poisoners: int) -> dict[str, Any]:
    """Accuracies with poisoners in every direction, the worst known one, and that of a descent."""
    others = poisoned.honest(poisoners)

    def mean(vector: np.ndarray, times: int) -> float:
        total = others + poisoners * vector
        sums = (poisoned.noised(total, SERVERS) for _ in range(times))
        return float(np.mean([poisoned.accuracy(each) for each in sums]))

    found = {what: (mean(poisoned.vector(way), 1), way) for what, way in poisoned.directions()}
    worst = min(found, key=lambda what: found[what][0])
    descended = poisoned.descended(found[worst][1], poisoners)
    return {
        "poisoners": poisoners,
        "without them": round(mean(0 * poisoned.sent[0], TRIES), 2),
        "worst known direction": worst,
        "accuracy with it": round(mean(poisoned.vector(found[worst][1]), TRIES), 2),
        "accuracy with a descent on the model": round(mean(poisoned.vector(descended), TRIES), 2),
        "all known directions, one try": {what: round(a, 2) for what, (a, _) in found.items()},
    }


def too_long(window: Window, user: int, keys: PrivateKeys, long: np.ndarray, bound: int) -> bytes:
    """Report of a vector that is too long; liars of even numbers prove bits of a shorter one's."""
    if user % 2:  # proves a bound that is not its own
        larger = Pine.for_bound(dimension=window.dimension, norm_bound=(TIMES + 1) * bound)
        with patch.object(reports, "proof_of", lambda dimension, bound: larger):
            return make_report(window, user, keys, long, bound)
    norm, tests = Pine._norm_bits, Pine._test_bits
    with (
        patch.object(Pine, "_norm_bits", lambda self, v: norm(self, v // (TIMES + 1))),
        patch.object(Pine, "_test_bits", lambda self, results: tests(self, 0 * results)),
    ):
        return make_report(window, user, keys, long, bound)


def real_window(poisoned: Poisoned, vector: np.ndarray, poisoners: int) -> dict[str, Any]:
    """All users' reports, proven, and those of as many liars, through two aggregators."""
    encoder, users, liars = poisoned.encoder, len(poisoned.sent), poisoners
    norm_bound = round(poisoned.bound / float(encoder.step))
    keys = [PrivateKeys.generate() for _ in range(users + liars)]
    refused: dict[int, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        std, place = float(encoder.stds_in_steps), Path(folder)
        file = make_window(place, keys, len(vector), norm_bound, std)
        processes, operator = commands(place), read_private(place / FOLDERS[LEADER])
        for process in processes:
            process.start()
        with Aggregators(file.window, file.addresses, trust(place / AGREED), 600.0) as aggregators:
            for user, own in enumerate(keys):
                if user < users:
                    sent = vector if user < poisoners else poisoned.sent[user]
                    report = make_report(file.window, user, own, sent, norm_bound)
                else:
                    report = too_long(file.window, user, own, TIMES * vector, norm_bound)
                try:
                    aggregators.report(user, report)
                except ValueError as error:  # before any proof is looked at
                    refused[user] = str(error)
            while aggregators.decided(operator) < len(keys) - len(refused):
                time.sleep(1)
            words = aggregators.status(operator)[LEADER].split("; ")[1:]
            refused |= {int(user): why for user, _, why in (line.partition(": ") for line in words)}
            opened = aggregators.open(operator)
        for process in processes:
            process.kill()
    total = opened.total.view(np.int64)
    noise = total - poisoned.honest(poisoners) - poisoners * vector
    right = refused.keys() == set(range(users, users + liars))
    right &= opened.users == frozenset(range(users))
    right &= bool(abs(noise.std() / (SERVERS**0.5 * std) - 1) < 0.05)
    reasons = dict(Counter(why.rpartition(": ")[2] for why in refused.values()))
    found = {"users": users, "of allowed length, poisoned": poisoners, "too long": liars}
    found |= {"refused by name": len(refused), "why": reasons, "right": right}
    return found | {"accuracy": round(poisoned.accuracy(total), 2)}


def without_proofs(sets: Sets, privacy: Privacy) -> dict[str, Any]:
    """`secagg`: its users add the noise, and nobody looks at what they send."""
    poisoned = Poisoned.of(sets, replace(privacy, noise_by="users"), {}, 0)
    poisoners = USERS // 100
    _, way = next(poisoned.directions())
    found: dict[str, Any] = {"users": USERS, "too long": poisoners}
    for what, times in (("accuracy without them", 0), ("accuracy with them", TIMES)):
        long = poisoned.vector(way, times)
        vectors = [long if user < poisoners else own for user, own in enumerate(poisoned.sent)]
        noised = np.stack([poisoned.noised(each, 1) for each in vectors]).view(np.uint64)
        total = simulate_sum(noised).total if times else noised.sum(0)
        found[what] = round(poisoned.accuracy(total.view(np.int64)), 2)
    return found | {"in the sum": USERS}


def tried(made: dict[int, Poisoned]) -> dict[str, Any]:
    """Accuracies in all directions, by the number of poisoners."""
    first = next(iter(made.values()))
    longest = max(torch.linalg.vector_norm(first.decoded(each)).item() for each in first.sent)
    found = {"options": first.options, "numbers": len(first.sent[0])}
    found |= {"bound": round(first.bound, 3)}
    found |= {"longest honest vector over the bound": round(longest / first.bound, 3)}
    return found | {"shares": [directions(poisoned, count) for count, poisoned in made.items()]}


def played(sets: Sets, privacy: Privacy, poisoned: Poisoned, poisoners: int) -> dict[str, Any]:
    """A window with poisoners and liars, and a sum by `secagg` with liars."""
    others = poisoned.honest(poisoners)
    vectors = [poisoned.vector(way) for _, way in poisoned.directions()]
    sums = [poisoned.noised(others + poisoners * vector, SERVERS) for vector in vectors]
    worst = vectors[int(np.argmin([poisoned.accuracy(total) for total in sums]))]
    window = real_window(poisoned, worst, poisoners)
    secagg = without_proofs(sets, privacy)
    return {"options": poisoned.options, "window": window, "secagg": secagg}


def main(embeddings: Path, public: Path, real: bool = False, write: Path | None = None) -> int:
    """Prints and writes accuracies by options and shares, means of three draws."""
    sets, privacy = opened(embeddings, public), Privacy(1.2, DELTA, noise_by="servers")
    found: dict[str, Any] = {"machine": provenance(), "epsilon": privacy.epsilon, "users": USERS}
    counts = [round(share * USERS) for share in SHARES]
    if real:
        poisoned = Poisoned.of(sets, privacy, OPTIONS[-1], counts[-1])
        found |= played(sets, privacy, poisoned, counts[-1])
    else:
        made = (
            {count: Poisoned.of(sets, privacy, options, count) for count in counts}
            for options in OPTIONS
        )
        found["directions"] = [tried(each) for each in made]
    show(found)
    save(write, found)
    return int(real and not found["window"]["right"])


if __name__ == "__main__":
    sys.exit(tyro.cli(main))
