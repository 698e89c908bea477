"""One study: estimate C1 and C2, solve the formulas, measure what they give, recommend.

The recommendation is Algorithm 1 of Zhang et al. 2024:

    min_g  η_u ε_u(g) + η_e ε_e(g)   s.t.   ε̃_p(g) <= budget

ε_u and ε_e are measured. Stronger protection costs more, so the optimum lies on the constraint;
compression is the exception, as fewer parameters also save bits: there every ρ <= ρ* competes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from tqdm import tqdm

from pretrain import check
from train_distributed.research.protection import exact_sums
from train_distributed.research.protection.closed_forms import Constants, Optimum
from train_distributed.research.protection.estimate import constants
from train_distributed.research.protection.measure import AttackBenchmark, Measurement
from train_distributed.research.protection.mechanisms import (
    Facts,
    Mechanism,
    Randomisation,
    Sparsification,
    StudySettings,
    Unprotected,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing
from train_distributed.research.protection.training import LEAST_MODELS

PROTECTIONS = (Randomisation, exact_sums.Paillier, exact_sums.Shares, Sparsification)
Cost = Literal["megabits", "seconds"]


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
    check.within("[0, inf)", budget=settings.budget)
    check.positive(half_width=settings.half_width)
    check.at_least(DEPLOYED_BITS, key_bits=settings.key_bits)
    Packing(exact_sums.fixed_point(clients), settings.key_bits)
    check.at_least(2, servers=settings.servers)
    check.at_least(1, noise_levels=settings.noise_levels)
    check.at_least(LEAST_MODELS, variance_models=settings.variance_models)


def run_study(benchmark: AttackBenchmark, settings: StudySettings, variance_rounds: int) -> Study:
    """Estimates, solves, deploys and measures.

    Raises:
        ValueError: the budget is below what any mechanism reaches.
    """
    federation, attack = benchmark.federation, benchmark.unprotected
    estimated = constants(attack, benchmark.blind)
    drawn = federation.models(settings.variance_models, variance_rounds, benchmark.seed + 1)
    spread = federation.inverse_variances(drawn, benchmark.seed)
    facts = Facts(federation.target.parameters, settings.half_width, spread)
    estimated.require_reachable(settings.budget, PROTECTIONS)
    optima = [(kind, estimated.solve(settings.budget, kind, facts)) for kind in PROTECTIONS]
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
