"""Leakage, accuracy and cost of one mechanism at one parameter, all measured."""

import math
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.research.protection.estimate import Leakage, Recoveries, leakage
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.mechanisms import Exchange, Mechanism, Unprotected, View
from train_distributed.research.protection.training import FederatedTraining

COST_CLIENTS = 2  # clients whose real messages are timed
MEGABIT = 8e-6  # of a byte
BLIND = 20  # blind attacks for each attack, so that their rate's interval is short


@dataclass(frozen=True)
class Measurement:
    """Leakage and cost of a mechanism at one parameter."""

    mechanism: str
    parameter: float  # g as deployed
    leakage: Leakage
    accuracy: float  # mean over seeds
    utility_loss: float  # mean over seeds of unprotected minus protected accuracy
    utility_loss_std: float
    bytes_per_client: float  # one message and its answer
    seconds: float  # CPU of one client and the busiest server, one aggregation
    extra_megabits: float  # over the unprotected wire, per client and message
    extra_seconds: float


@dataclass(frozen=True, eq=False)
class AttackBenchmark:
    """Measures a federation under attack: M models, the clients' fixed batches, T attacks on each.

    Raises:
        ValueError: a count below 1.
    """

    federation: FederatedTraining
    threshold: float  # of the similarity above which a record counts as recovered
    models: tuple[Tensor, ...]  # M of (m,), the w that the server sent
    attacks: int  # T
    victims: int  # clients whose records are looked for
    seeds: int  # repetitions of the training
    seed: int
    _sums: dict[tuple[int, int], list[tuple[Tensor, np.ndarray]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check.at_least(1, models=len(self.models), attacks=self.attacks, seeds=self.seeds)
        check.within(f"[1, {len(self.federation.clients)}]", victims=self.victims)

    def measure(self, mechanism: Mechanism) -> Measurement:
        """Attacks, trains and times a mechanism."""
        plain, out = self._plain, self._exchange(mechanism)
        plainly = mechanism == Unprotected()
        attack = self.unprotected if plainly else self.attack(mechanism)
        accuracies = self._accuracies(mechanism)
        losses = np.array(self._plain_accuracies) - np.array(accuracies)
        return Measurement(
            mechanism.name,
            mechanism.parameter,
            leakage(attack, self.blind),
            float(np.mean(accuracies)),
            float(losses.mean()),
            float(losses.std(ddof=1)) if len(losses) > 1 else 0.0,
            out.bytes_per_client,
            out.seconds,
            (out.bytes_per_client - plain.bytes_per_client) * MEGABIT,
            out.seconds - plain.seconds,
        )

    def attack(self, mechanism: Mechanism) -> Recoveries:
        """A record counts as recovered where any view of the server gives it away."""
        hits = np.zeros(self._shape, bool)
        for m, model in enumerate(self.models):
            updates = self.federation.updates(model, *self.records)
            for t in range(self.attacks):
                generator = self._generator(m, t)
                views = mechanism.views(updates, generator)
                for view in views["message"][: self.victims]:
                    self._book(hits[:, m, t], view, model, generator)
                if "sum" in views:
                    hits[:, m, t] |= self._opened(m, t, views["sum"][0])
        return Recoveries(hits)

    def reconstruct(self, view: View, model: Tensor, generator: torch.Generator) -> Tensor:
        """Records that an attacker finds behind what a server read of updates of a model."""
        options = self.federation.options
        seen = Observation.of(view, model, options.step)
        size = len(view.clients) * options.batch
        return invert(self.federation.target, seen, size, generator).x

    @cached_property
    def unprotected(self) -> Recoveries:
        """The attack on the models themselves."""
        return self.attack(Unprotected())

    @cached_property
    def blind(self) -> Recoveries:
        """The attack without a gradient: guesses are random public records, and cost little."""
        victims, models, attacks, batch = self._shape
        hits = np.zeros((victims, BLIND * models, attacks, batch), bool)
        public = self.federation.public
        for m in range(hits.shape[1]):
            for t in range(attacks):
                generator = self._generator(m, t)
                for k in range(victims):
                    rows = torch.randint(len(public), (batch,), generator=generator)
                    hits[k, m, t] = self._recovered(public[rows], k)
        return Recoveries(hits, shared=False)

    @cached_property
    def records(self) -> tuple[Tensor, Tensor]:
        """Every client's mini-batch D_k, the same in all attacks: (K, S, ...) and (K, S)."""
        return self.federation.batches(self._generator(-1, 0))

    @property
    def update_size(self) -> float:
        """Root mean square of an entry of w − w' over clients and models: a scale for noise."""
        squares = [
            (model - self.federation.updates(model, *self.records)).square().mean()
            for model in self.models
        ]
        return math.sqrt(float(torch.stack(squares).mean()))

    def _opened(self, m: int, t: int, view: View) -> np.ndarray:
        """(victims, S) hits of the opened sum; equal sums of two mechanisms are attacked once."""
        for seen, hits in self._sums.get((m, t), ()):
            if torch.equal(seen, view.values):
                return hits
        hits = np.zeros((self.victims, self._shape[3]), bool)
        self._book(hits, view, self.models[m], self._generator(m, t))
        self._sums.setdefault((m, t), []).append((view.values, hits))
        return hits

    def _book(
        self, hits: np.ndarray, view: View, model: Tensor, generator: torch.Generator
    ) -> None:
        guess = self.reconstruct(view, model, generator)
        for k in view.clients:
            if k < self.victims:
                hits[k] |= self._recovered(guess, k)

    def _recovered(self, guesses: Tensor, client: int) -> np.ndarray:
        """(S,) bool, which records of a client are among the guesses."""
        records = self.records[0][client]
        return self.federation.target.recovered(guesses, records, self.threshold).numpy()

    def _accuracies(self, mechanism: Mechanism) -> list[float]:
        return [self.federation.accuracy(mechanism, self.seed + s) for s in range(self.seeds)]

    @cached_property
    def _plain_accuracies(self) -> list[float]:
        return self._accuracies(Unprotected())

    @cached_property
    def _plain(self) -> Exchange:
        return self._exchange(Unprotected())

    def _exchange(self, mechanism: Mechanism) -> Exchange:
        models = self.federation.updates(self.models[0], *self.records)
        return mechanism.exchange(models[:COST_CLIENTS], self._generator(-2, 0))

    @property
    def _shape(self) -> tuple[int, int, int, int]:
        return self.victims, len(self.models), self.attacks, self.federation.options.batch

    def _generator(self, m: int, t: int) -> torch.Generator:
        state = np.random.SeedSequence([self.seed, m + 2, t]).generate_state(1, np.uint64)
        return torch.Generator().manual_seed(int(state[0] >> np.uint64(1)))
