"""Privacy cost of several sums over the same private rows.

**Gaussian promises** add up exactly: mechanisms of sensitivity over noise μ_i, chosen one after
another with all earlier results in sight, are together one of μ² = Σ μ_i² (Cor. 3.3 of Dong, Roth
and Su 2022; that the sum may be held below a limit which was set before, although later noise
depends on earlier results: Smith and Thakurta 2022). Integer noise is within e^ζ of a Gaussian,
point by point (`mechanism`), so together ε(δ) = ε_Gauss(e^-Z δ) + 2Z with Z = Σ ζ_i.

**All others** are counted by their stated (ε_j, δ_j), which add up whatever the mechanisms were
(Thm 3.16 of Dwork and Roth 2014). Both together: ε = ε_Gauss(δ - Σ δ_j) + Σ ε_j.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction

from pretrain import check
from train_distributed import accounting

# Relative margin of costs that add up, and of noise that is planned: covers the float64 rounding of
# a sum of squares (and of sums of shares), of its root and of its inverse.
COST_ROUND_UP = 1 + 2.0**-48


@dataclass(frozen=True)
class Cost:
    """Privacy cost of several promises together."""

    squared_mu: float = 0.0  # Σ μ_i² of the Gaussian ones
    zeta: float = 0.0  # Σ ζ_i
    epsilon: float = 0.0  # Σ ε_j of the others
    delta: float = 0.0  # Σ δ_j of the others

    @classmethod
    def of(cls, costs: Iterable["Cost"]) -> "Cost":
        """All of them on the same rows, rounded up."""
        listed = list(costs)
        return cls(*(sum_up(getattr(c, f.name) for c in listed) for f in fields(cls)))

    def worst(self, other: "Cost") -> "Cost":
        """At least either of them: for rows that are in one of two disjoint parts."""
        return Cost(*(max(getattr(self, f.name), getattr(other, f.name)) for f in fields(Cost)))

    def at(self, delta: float) -> float:
        """ε at δ; infinite where δ is less than the Σ δ_j that is spent already.

        Raises:
            ValueError: δ outside (0, 1).
        """
        check.within("(0, 1)", delta=delta)
        if self.squared_mu == 0:
            return self.epsilon if delta >= self.delta else math.inf
        left = (delta / COST_ROUND_UP - self.delta) * math.exp(-self.zeta) / COST_ROUND_UP
        if not left >= accounting.SMALLEST_DELTA or math.isinf(self.squared_mu):
            return math.inf
        mu = math.sqrt(self.squared_mu) * COST_ROUND_UP
        return sum_up((accounting.epsilon(left, 1 / mu), 2 * self.zeta, self.epsilon))


def sum_up(numbers: Iterable[float]) -> float:
    """The sum, exactly, or the next double above it."""
    listed = list(numbers)
    rounded = math.fsum(listed)
    if not math.isfinite(rounded) or Fraction(rounded) >= sum(map(Fraction, listed)):
        return rounded
    return math.nextafter(rounded, math.inf)
