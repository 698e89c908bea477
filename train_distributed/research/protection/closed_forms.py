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
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Label = Literal["unconstrained", "within proof", "heuristic", "infeasible"]
LARGEST_C1 = math.sqrt(math.log(2))  # √JS in natural logarithms


@dataclass(frozen=True)
class Constants:
    """C1 and C2 of one attack surface.

    Raises:
        ValueError: C1 outside [0, √ln 2] or C2 not finite and >= 0.
    """

    c1: float  # mean over clients of √JS(F^O ‖ F^B)
    c2: float  # (e^{2ξ} − 1)/2

    def __post_init__(self) -> None:
        if not 0 <= self.c1 <= LARGEST_C1 * (1 + 1e-12):
            raise ValueError(f"c1 must be in [0, sqrt(ln 2)], got {self.c1}")
        if not (math.isfinite(self.c2) and self.c2 >= 0):
            raise ValueError(f"c2 must be finite and >= 0, got {self.c2}")

    def distortion(self, budget: float) -> float:
        """τ, the total variation that the budget asks for: <= 0 none, +inf out of reach."""
        short = 2 * self.c1 - check_budget(budget)
        if short <= 0:
            return 0.0 if self.c2 == 0 else short / self.c2
        return math.inf if self.c2 == 0 else short / self.c2

    def label(self, budget: float, form: "Form") -> Label:
        """What the formula is worth for a mechanism at a budget."""
        tau = self.distortion(budget)
        if tau <= 0:
            return "unconstrained"
        if not form.reaches(tau):
            return "infeasible"
        return "within proof" if budget >= 1.5 * self.c1 else "heuristic"

    def solve(self, budget: float, form: "Form") -> "Optimum":
        """The weakest parameter of a mechanism that (8) lets meet the budget.

        Raises:
            ValueError: the budget is not finite or negative.

        Examples:
            >>> optimum = Constants(c1=0.5, c2=2.0).solve(0.4, CompressionBound(parameters=10))
            >>> optimum.label, round(optimum.tau, 3), round(optimum.parameter, 4)
            ('heuristic', 0.3, 0.965)
        """
        tau, label = self.distortion(budget), self.label(budget, form)
        if label in ("unconstrained", "infeasible"):
            return Optimum(form.name, label, tau, None, None)
        excess = form.excess(tau)
        return Optimum(form.name, label, tau, excess, form.log_parameter(excess))

    def least_budget(self, forms: Iterable["Form"]) -> float:
        """The least leakage that (8) grants to any of the mechanisms; leakage is never negative."""
        return max(0.0, 2 * self.c1 - self.c2 * max(form.reach for form in forms))

    def require_reachable(self, budget: float, forms: Iterable["Form"]) -> None:
        """Refuses a budget that none of the mechanisms can meet by (8).

        Raises:
            ValueError: naming the least budget that is reachable.
        """
        forms = list(forms)
        if all(self.label(budget, form) == "infeasible" for form in forms):
            raise ValueError(
                f"budget must be >= {self.least_budget(forms):.6g}, the least that any mechanism "
                f"reaches by 2 C1 - C2 TV with C1 = {self.c1:.6g}, C2 = {self.c2:.6g}, got {budget}"
            )


@dataclass(frozen=True)
class Optimum:
    """A mechanism's parameter by the formula."""

    mechanism: str
    label: Label
    tau: float  # TV asked for
    excess: float | None  # the form's own scale, see `Form.excess`; None: nothing to choose
    log_parameter: float | None  # ln g*, −inf for compression that sends nothing

    @property
    def parameter(self) -> float | None:
        """g* itself: noise variance, n, r or ρ; None where there is nothing to choose."""
        return None if self.log_parameter is None else math.exp(self.log_parameter)


class Form(ABC):
    """The total variation that the paper grants to a mechanism, as a function of its parameter.

    `excess` is the scale on which TV is computed without loss: with m = 10^6 parameters the
    parameter itself, and even its logarithm, has too few digits to give TV back.
    """

    name: str
    reach: float = 1.0  # supremum of TV
    attained: bool = False  # whether some parameter has TV = reach

    def reaches(self, tau: float) -> bool:
        """Whether some parameter has TV = τ."""
        return tau <= self.reach if self.attained else tau < self.reach

    @abstractmethod
    def excess(self, tau: float) -> float:
        """The excess at which TV = τ in (0, reach]."""

    @abstractmethod
    def tv(self, excess: float) -> float:
        """TV at an excess."""

    @abstractmethod
    def log_parameter(self, excess: float) -> float:
        """ln g at an excess."""


@dataclass(frozen=True)
class RandomisationBound(Form):
    """Gaussian noise of variance g: TV = 1/100 min(1, g A), eq. (15). Excess: g A."""

    inverse_variances: float  # A = √(Σ_i 1/s_i⁴), s_i the standard deviation of parameter i

    name = "randomisation"
    reach = 0.01
    attained = True

    def __post_init__(self) -> None:
        _require_positive("inverse_variances", self.inverse_variances)

    def excess(self, tau: float) -> float:
        """The excess 100 τ."""
        return 100 * tau

    def tv(self, excess: float) -> float:
        """TV, 1/100 min(1, excess)."""
        return min(1.0, excess) / 100

    def log_parameter(self, excess: float) -> float:
        """ln g = ln(excess / A), Theorem 6.1."""
        return math.log(excess) - math.log(self.inverse_variances)


@dataclass(frozen=True)
class _Power(Form):
    """TV = 1 − e^{−m · excess}: m parameters, each inside its box with probability e^{−excess}."""

    parameters: int  # m

    def __post_init__(self) -> None:
        if self.parameters < 1:
            raise ValueError(f"m must be >= 1, got {self.parameters}")

    def excess(self, tau: float) -> float:
        """The excess −ln(1 − τ) / m."""
        return math.inf if tau == 1 else -math.log1p(-tau) / self.parameters

    def tv(self, excess: float) -> float:
        """TV, 1 − e^{−m · excess}."""
        return -math.expm1(-self.parameters * excess)


@dataclass(frozen=True)
class _Box(_Power):
    """A power whose plaintexts lie in a box."""

    half_width: float  # δ of the box

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_positive("half_width", self.half_width)


@dataclass(frozen=True)
class PaillierBound(_Box):
    """Ciphertexts modulo n²: TV = 1 − (2δ/n²)^m, eq. (18). Excess: ln(n²/2δ)."""

    name = "paillier"

    def log_parameter(self, excess: float) -> float:
        """ln n = (ln 2δ + excess)/2."""
        return (math.log(2 * self.half_width) + excess) / 2


@dataclass(frozen=True)
class SharesBound(_Box):
    """Masks bounded by r, b = r: TV = 1 − (2δ/(b+r))^m, eq. (19). Excess: ln(r/δ)."""

    name = "shares"

    def log_parameter(self, excess: float) -> float:
        """ln r = ln δ + excess."""
        return math.log(self.half_width) + excess


@dataclass(frozen=True)
class CompressionBound(_Power):
    """Parameters kept with probability ρ: TV = 1 − ρ^m, eq. (21). Excess: −ln ρ; ρ = 0 is TV 1."""

    name = "compression"
    attained = True

    def log_parameter(self, excess: float) -> float:
        """ln ρ = −excess, Theorem 6.4."""
        return -excess


def check_budget(budget: float) -> float:
    """The budget itself.

    Raises:
        ValueError: not finite or negative.
    """
    if not (math.isfinite(budget) and budget >= 0):
        raise ValueError(f"budget must be finite and >= 0, got {budget}")
    return budget


def _require_positive(name: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value}")
