"""One study: estimate C1 and C2, solve the formulas, measure what they give, recommend.

The recommendation is Algorithm 1 of Zhang et al. 2024:

    min_g  η_u ε_u(g) + η_e ε_e(g)   s.t.   ε̃_p(g) <= budget

ε_u and ε_e are measured. Stronger protection costs more, so the optimum lies on the constraint;
compression is the exception, as fewer parameters also save bits: there every ρ <= ρ* competes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pretrain import check
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.leakage import (
    Constants,
    Leakage,
    Optimum,
    Recoveries,
    constants,
    leakage,
)
from train_distributed.research.protection.mechanisms import (
    Exchange,
    FormulaInputs,
    Mechanism,
    Paillier,
    Randomisation,
    Shares,
    Sparsification,
    StudySettings,
    Unprotected,
    View,
    fixed_point,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing
from train_distributed.research.protection.training import LEAST_MODELS, FederatedTraining

COST_CLIENTS = 2  # clients whose real messages are timed
MEGABIT = 8e-6  # of a byte
BLIND = 20  # blind attacks for each attack, so that their rate's interval is short
PROTECTIONS = (Randomisation, Paillier, Shares, Sparsification)
Cost = Literal["megabits", "seconds"]


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
        return invert(self.federation.target, seen, size, generator)

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


@dataclass(frozen=True)
class Preference:
    """Worth of accuracy and of cost.

    Raises:
        ValueError: a weight that is negative, or both zero.
    """

    utility: float  # η_u, per unit of accuracy lost
    efficiency: float  # η_e, per extra megabit or second
    cost: Cost = "megabits"

    def __post_init__(self) -> None:
        given = {"prefer_utility": self.utility, "prefer_efficiency": self.efficiency}
        check.within("[0, inf)", **given)
        if self.utility == self.efficiency == 0:
            raise ValueError("prefer_utility and prefer_efficiency must not both be 0, got 0 and 0")

    def objective(self, point: Measurement) -> float:
        """η_u ε_u + η_e ε_e, measured."""
        return self.utility * point.utility_loss + self.efficiency * extra(point, self.cost)


@dataclass(frozen=True)
class Candidate:
    """A mechanism's optimum by the formula, and the points of it that were measured."""

    optimum: Optimum
    at_optimum: Measurement | None  # as deployed for g*; None: nothing to deploy
    others: tuple[Measurement, ...]

    def eligible(self) -> tuple[Measurement, ...]:
        """The measured points that the formula lets meet the budget and that may be cheapest."""
        if self.at_optimum is None:
            return ()
        if self.optimum.mechanism != Sparsification.name:  # the one that costs less when stronger
            return (self.at_optimum,)
        limit = self.at_optimum.parameter
        return (self.at_optimum, *(p for p in self.others if p.parameter <= limit))


@dataclass(frozen=True)
class Study:
    """Estimated constants, optima and measured points."""

    constants: Constants
    inverse_variances: float  # A
    unprotected: Measurement
    candidates: tuple[Candidate, ...]

    @property
    def points(self) -> list[Measurement]:
        """Everything that was measured, the unprotected wire first, each point once."""
        found = [self.unprotected]
        for each in self.candidates:
            found += [p for p in (each.at_optimum, *each.others) if p is not None]
        return found


def check_settings(settings: StudySettings, clients: int) -> None:
    """Checks everything that needs no data.

    Raises:
        ValueError: naming the setting.
    """
    check.within("(0, 1)", threshold=settings.threshold)
    check.positive(half_width=settings.half_width)
    check.at_least(DEPLOYED_BITS, key_bits=settings.key_bits)
    Packing(fixed_point(clients), settings.key_bits)
    check.at_least(2, servers=settings.servers)
    check.at_least(1, noise_levels=settings.noise_levels, models=settings.models)
    check.at_least(LEAST_MODELS, variance_models=settings.variance_models)
    check.at_least(0, steps=settings.steps)


def run_study(benchmark: AttackBenchmark, budget: float, settings: StudySettings) -> Study:
    """Estimates, solves, deploys and measures.

    Raises:
        ValueError: the budget is below what any mechanism reaches.
    """
    federation, attack = benchmark.federation, benchmark.unprotected
    estimated = constants(attack, benchmark.blind)
    drawn = federation.models(settings.variance_models, settings.steps, benchmark.seed + 1)
    spread = federation.inverse_variances(drawn, benchmark.seed)
    facts = FormulaInputs(federation.target.parameters, settings.half_width, spread)
    estimated.require_reachable(budget, PROTECTIONS)
    optima = [(kind, estimated.solve(budget, kind, facts)) for kind in PROTECTIONS]
    size = benchmark.update_size
    plans = [(o, *_deployed(kind, o, size, settings)) for kind, o in optima]
    points = 1 + sum((at is not None) + len(others) for _, at, others in plans)
    with tqdm(total=points, unit="point", disable=None) as bar:

        def measure(mechanism: Mechanism) -> Measurement:
            bar.set_postfix_str(f"{mechanism.name} {mechanism.parameter:.3g}")
            found = benchmark.measure(mechanism)
            bar.update()
            return found

        unprotected = measure(Unprotected())
        candidates = tuple(
            Candidate(o, None if at is None else measure(at), tuple(map(measure, others)))
            for o, at, others in plans
        )
    return Study(estimated, spread, unprotected, candidates)


def _deployed(
    kind: type[Mechanism], optimum: Optimum, update_size: float, settings: StudySettings
) -> tuple[Mechanism | None, Sequence[Mechanism]]:
    """The mechanism at its optimum, if it has one, and at other parameters.

    Where the formula has nothing to deploy, exact sums are measured as they would run without it.
    """
    chosen = optimum.log_parameter
    at = None if chosen is None else kind.deploy(chosen, settings)
    others = kind.levels(update_size, settings)
    return at, others or ([] if at else [kind.deploy(None, settings)])


def by_formula(candidates: Iterable[Candidate], preference: Preference) -> Measurement | None:
    """Algorithm 1: the cheapest eligible point; None where no mechanism has one."""
    points = [point for each in candidates for point in each.eligible()]
    return min(points, key=preference.objective, default=None)


def by_measurement(
    points: Iterable[Measurement], preference: Preference, budget: float
) -> Measurement | None:
    """The cheapest point whose measured leakage is within the budget, interval and all."""
    met = [point for point in points if point.leakage.meets(budget) == "yes"]
    return min(met, key=preference.objective, default=None)


def pareto(points: Sequence[Measurement], cost: Cost = "megabits") -> list[Measurement]:
    """The points that no other beats: leakage, accuracy lost and extra cost, least is best."""
    axes = [(p.leakage.value, p.utility_loss, extra(p, cost)) for p in points]
    return [
        point
        for point, mine in zip(points, axes, strict=True)
        if not any(
            theirs != mine and all(a <= b for a, b in zip(theirs, mine, strict=True))
            for theirs in axes
        )
    ]


def extra(point: Measurement, cost: Cost) -> float:
    """ε_e, over the unprotected wire."""
    return point.extra_megabits if cost == "megabits" else point.extra_seconds
