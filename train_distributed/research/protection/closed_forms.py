"""The least protection that a leakage budget asks for, in closed form, and what that is worth.

Zhang et al. 2024 (arXiv 2305.18400) measure leakage by

    ε̃_p(g) = 2 C1 − C2 TV(g)                                                             (8)

and ask for the weakest g with ε̃_p(g) ≤ budget, that is TV(g) = τ = (2 C1 − budget) / C2. All
logarithms are natural.

**What is proven.** The triangle inequality gives ε_p ≤ C1 + C2 TV. That is at most (8) only where
C2 TV ≤ C1/2, so the formula is a theorem only for budgets of at least 1.5 C1 — which no protection
meets too, as it leaks exactly C1. Below that it is a heuristic, and is labelled so.

**Two optima differ from the paper's Table 1.** It prints those of Paillier and secret sharing
without the "1 −" in front of (2 C1 − ε)/C2, against its own bounds (18) and (19), which the forms
here solve.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pretrain import check
from train_distributed.research.protection.mechanisms import Facts, Mechanism

Label = Literal["unconstrained", "within proof", "heuristic", "infeasible"]
LARGEST_C1 = math.sqrt(math.log(2)) * (1 + 1e-12)  # of √JS in natural logarithms, rounded up


@dataclass(frozen=True)
class Constants:
    """C1 and C2 of one attacked model.

    Raises:
        ValueError: C1 outside [0, √ln 2] or C2 not finite and >= 0.
    """

    c1: float  # mean over clients of √JS(F^O ‖ F^B)
    c2: float  # (e^{2ξ} − 1)/2

    def __post_init__(self) -> None:
        check.within(f"[0, {LARGEST_C1}]", c1=self.c1)
        check.within("[0, inf)", c2=self.c2)

    def distortion(self, budget: float) -> float:
        """τ, the total variation that the budget asks for: <= 0 none, +inf out of reach."""
        check.within("[0, inf)", budget=budget)
        short = 2 * self.c1 - budget
        if self.c2 == 0:
            return 0.0 if short <= 0 else math.inf
        return short / self.c2

    def label(self, budget: float, mechanism: type[Mechanism]) -> Label:
        """Worth of the formula for a mechanism at a budget."""
        tau = self.distortion(budget)
        if tau <= 0:
            return "unconstrained"
        if not mechanism.reaches(tau):
            return "infeasible"
        return "within proof" if budget >= 1.5 * self.c1 else "heuristic"

    def solve(self, budget: float, mechanism: type[Mechanism], facts: Facts) -> "Optimum":
        """The weakest parameter of a mechanism that (8) lets meet the budget.

        Raises:
            ValueError: the budget is not finite or negative.

        Examples:
            >>> from train_distributed.research.protection.mechanisms import Sparsification
            >>> optimum = Constants(c1=0.5, c2=2.0).solve(0.4, Sparsification, Facts(10))
            >>> optimum.label, round(optimum.tau, 3), round(optimum.parameter, 4)
            ('heuristic', 0.3, 0.965)
        """
        tau, label = self.distortion(budget), self.label(budget, mechanism)
        if label in ("unconstrained", "infeasible"):
            return Optimum(mechanism.name, label, tau, None)
        return Optimum(mechanism.name, label, tau, mechanism.log_parameter(tau, facts))

    def require_reachable(self, budget: float, mechanisms: Sequence[type[Mechanism]]) -> None:
        """Refuses a budget that none of the mechanisms can meet by (8).

        Raises:
            ValueError: naming the least budget that is reachable.
        """
        if all(self.label(budget, each) == "infeasible" for each in mechanisms):
            least = max(0.0, 2 * self.c1 - self.c2 * max(each.reach for each in mechanisms))
            raise ValueError(
                f"budget must be >= {least:.6g}, the least that any "
                f"mechanism reaches by 2 C1 - C2 TV with C1 = {self.c1:.6g}, C2 = {self.c2:.6g}, "
                f"got {budget}"
            )


@dataclass(frozen=True)
class Optimum:
    """A mechanism's parameter by the formula."""

    mechanism: str
    label: Label
    tau: float  # TV asked for
    log_parameter: float | None  # ln g*, −inf for compression that sends nothing; None: no choice

    @property
    def parameter(self) -> float | None:
        """g* itself: noise variance, n, r or ρ; None where there is nothing to choose."""
        return None if self.log_parameter is None else math.exp(self.log_parameter)
