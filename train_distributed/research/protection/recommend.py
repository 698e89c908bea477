"""The meta-algorithm: the cheapest parameter that meets a budget, and the Pareto front without one.

    min_g  η_u ε_u(g) + η_e ε_e(g)   s.t.   ε̃_p(g) <= budget        (Zhang et al. 2024, Algorithm 1)

ε_u and ε_e are measured. Stronger protection costs more, so the optimum lies on the constraint;
compression is the exception, as fewer parameters also save bits: there every ρ <= ρ* competes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pretrain import check
from train_distributed.research.protection.closed_forms import Optimum
from train_distributed.research.protection.measure import Measurement
from train_distributed.research.protection.mechanisms import Sparsification

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

    def axes(point: Measurement) -> tuple[float, float, float]:
        return point.leakage.value, point.utility_loss, extra(point, cost)

    def beaten(point: Measurement) -> bool:
        mine = axes(point)
        return any(
            theirs != mine and all(a <= b for a, b in zip(theirs, mine, strict=True))
            for theirs in map(axes, points)
        )

    return [point for point in points if not beaten(point)]


def extra(point: Measurement, cost: Cost) -> float:
    """ε_e, over the unprotected wire."""
    return point.extra_megabits if cost == "megabits" else point.extra_seconds
