"""What one sum over private rows costs, and what many of them cost together.

**Gaussian promises** add up exactly: mechanisms of sensitivity over noise μ_i, chosen one after
another with all earlier results in sight, are together one of μ² = Σ μ_i² (Cor. 3.3 of Dong, Roth
and Su 2022; that the sum may be held below a limit which was set before, although later noise
depends on earlier results: Smith and Thakurta 2022). Integer noise is within e^ζ of a Gaussian,
point by point (`integer_gaussian`), so together ε(δ) = ε_Gauss(e^-Z δ) + 2Z with Z = Σ ζ_i.

**All others** are counted by their stated (ε_j, δ_j), which add up whatever the mechanisms were
(Thm 3.16 of Dwork and Roth 2014). Both together: ε = ε_Gauss(δ - Σ δ_j) + Σ ε_j.

**Whose.** A promise for a user covers each of its records, a promise for a group each smaller one.
A promise for a record says nothing about a user. Parts of one split have no row in common: one
replaced record is in one of them only, so the parts do not add up for it, but the costliest counts.
For users and groups, which may have rows in all parts, and for sets whose rows differ, they do.
Users are those of one division of the rows: promises for the users of two divisions cover nobody's
rows of both, only a user that holds all rows is covered by any.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from typing import Any, Literal, Self, get_args

from train_distributed import accounting
from train_distributed.privacy.promise import Privacy, Unit

Kind = Literal["release", "evaluation", "re-release"]
ROUND_UP = 1 + 2.0**-48  # more than the roundings of a sum of squares, its root and its inverse
TEXTS = (
    *("kind", "data", "part", "split", "users", "images"),
    *("method", "noise", "result", "reference"),
)
SMALLEST = 1e-300  # μ² that doubles hold well
SLACK = 1e-9  # relative: what a stated ε and one computed from its noise may differ by


@dataclass(frozen=True)
class Cost:
    """What promises cost together."""

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
        if not 0 < delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {delta}")
        if self.squared_mu == 0:
            return self.epsilon if delta >= self.delta else math.inf
        left = (delta / ROUND_UP - self.delta) * math.exp(-self.zeta) / ROUND_UP
        if not left >= accounting.SMALLEST_DELTA or math.isinf(self.squared_mu):
            return math.inf
        mu = math.sqrt(self.squared_mu) * ROUND_UP
        return accounting.epsilon(left, 1 / mu) + 2 * self.zeta + self.epsilon


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One sum over private rows: what it was for, and what is known of its noise.

    Raises:
        ValueError: a field out of range, or an ε below what the noise gives.
    """

    kind: Kind
    data: str  # content hash of the embedding set, or another name of what was used
    part: str = ""  # rows of the set, e.g. "train"; "": all
    split: str = ""  # hash of which row is in which part: only parts of one split are disjoint
    users: str = ""  # hash of whose rows they are; "": one user's, all of them
    images: str = ""  # hash of the images that were embedded, where it is known
    method: str
    noise: str  # "discrete", "float" (a simulation), "none", or another word
    unit: Unit
    group_size: int = 1
    epsilon: float  # as promised, at
    delta: float
    sigma: float | None = None  # std of the noise that is certain; None: not Gaussian
    sensitivity: float | None = None  # L2, of one of
    compositions: int = 1
    zeta: float = 0.0  # ζ of the discrete noise
    result: str = ""  # name of the directory that was written
    reference: str = ""  # of a step that is counted once, however often it is asked for

    def __post_init__(self) -> None:
        for name in TEXTS:
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name} must be text, got {getattr(self, name)!r}")
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, got {self.kind!r}")
        if not self.data:
            raise ValueError("data must name the rows that are used, got none")
        if not self.gaussian and self.delta == 0 and self.epsilon > 0:
            self.promise(1e-9).validate()  # pure ε
        else:
            self.promise(self.delta).validate()
        for name in ("zeta", "compositions"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be >= 0 and finite, got {getattr(self, name)}")
        if (self.sigma is None) != (self.sensitivity is None):
            raise ValueError("sigma and sensitivity must be given both or neither, got one")
        if self.sigma is not None and self.sensitivity is not None:
            if not (
                0 <= self.sigma < math.inf and 0 < self.sensitivity < math.inf and self.compositions
            ):
                raise ValueError(
                    "sigma must be finite and >= 0, sensitivity finite and > 0, compositions >= 1, "
                    f"got {self.sigma}, {self.sensitivity}, {self.compositions}"
                )
            if not self._holds():
                given = self.cost.at(self.delta)
                raise ValueError(
                    f"epsilon must be >= {given:.7g}, what the noise gives, got {self.epsilon:.7g}"
                )

    def _holds(self) -> bool:
        """Whether the noise gives the stated ε at the stated δ."""
        left = self.epsilon * (1 + SLACK) - 2 * self.zeta
        if math.isinf(self.mu) or not left > 0:
            return math.isinf(left)
        found = accounting.delta(left, 1 / math.sqrt(self.cost.squared_mu))
        return found * math.exp(self.zeta) <= self.delta

    @property
    def gaussian(self) -> bool:
        """Whether its noise is known to be Gaussian, and so adds up as such."""
        return self.sigma is not None

    def promise(self, delta: float) -> Privacy:
        """Its unit, group and ε, at this δ."""
        return Privacy(self.epsilon, delta, unit=self.unit, group_size=self.group_size)

    @property
    def neighbouring(self) -> str:
        """Between which sets it promises anything, in words."""
        return self.promise(self.delta or 1e-9).report()["neighbouring"]

    @property
    def mu(self) -> float:
        """√C times sensitivity over noise; 0 where it is not Gaussian, infinite without noise."""
        if self.sigma is None or self.sensitivity is None:
            return 0.0
        return (
            math.sqrt(self.compositions) * self.sensitivity / self.sigma
            if self.sigma
            else (math.inf)
        )

    @property
    def cost(self) -> Cost:
        """What it adds."""
        if self.gaussian:
            return Cost(squared_mu=max(self.mu * self.mu, SMALLEST), zeta=self.zeta)
        return Cost(epsilon=self.epsilon, delta=self.delta)

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return to_words(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """What `to_json` gave.

        Raises:
            ValueError: a field is missing, unknown or out of range.
        """
        return read_fields(cls, stored)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What all promises of a ledger may come to: ε at δ for one record, or one user.

    Raises:
        ValueError: a field out of range.
    """

    epsilon: float
    delta: float
    unit: Unit = "record"

    def __post_init__(self) -> None:
        Privacy(self.epsilon, self.delta, unit=self.unit).validate()

    def within(self, other: "Limit") -> bool:
        """Whether it allows nothing that the other does not; a user's ε covers its records."""
        units = self.unit == other.unit or self.unit == "user"
        return units and self.epsilon <= other.epsilon and self.delta <= other.delta

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return to_words(self)


@dataclass(frozen=True)
class Total:
    """What several entries come to, for one unit."""

    unit: Unit
    group_size: int  # of the smallest group that all of them promise something to
    entries: int
    cost: Cost
    uncovered: int = 0  # entries that promise nothing to this unit
    least_delta: float = 0.0  # for which it is worth asking

    @classmethod
    def of(cls, entries: Iterable[Entry], unit: Unit) -> "Total":
        """All of them, on whatever rows they were."""
        listed = list(entries)
        covering = [e for e in listed if unit == "record" or e.unit == "user"]
        if unit == "user":
            division = next((e.users for e in covering if e.users), "")
            covering = [e for e in covering if e.users in ("", division)]
        group = min((e.group_size for e in covering if e.unit == unit), default=1)
        if any(e.unit != unit for e in covering):
            group = 1  # a user may hold one record
        promised = [e.delta for e in covering if e.gaussian]
        others = [e.delta for e in covering if not e.gaussian]
        return cls(
            unit,
            group,
            len(listed),
            _together(covering, apart=unit == "record" and group == 1),
            len(listed) - len(covering),
            sum_up([max(promised, default=0.0), *others]),
        )

    def epsilon(self, delta: float | None = None) -> float:
        """ε at δ, infinite where an entry promises nothing to this unit.

        Args:
            delta: None: `least_delta`, the largest δ of the Gaussian promises and all other δ.
        """
        if not self.entries:
            return 0.0
        if self.uncovered:
            return math.inf
        if delta is None and not self.least_delta:
            return self.cost.epsilon  # pure promises alone
        if delta is None and self.least_delta >= 1:
            return math.inf
        return self.cost.at(self.least_delta if delta is None else delta)


def sum_up(numbers: Iterable[float]) -> float:
    """The sum, exactly, or the next double above it."""
    listed = list(numbers)
    rounded = math.fsum(listed)
    if not math.isfinite(rounded) or Fraction(rounded) >= sum(map(Fraction, listed)):
        return rounded
    return math.nextafter(rounded, math.inf)


def _together(entries: list[Entry], *, apart: bool) -> Cost:
    """Of all entries; with `apart`, of the costliest part of each split that is known."""
    sets: dict[tuple[str, str], dict[str, list[Cost]]] = {}
    everywhere: list[Cost] = []
    for entry in entries:
        if apart and entry.part and entry.split:
            parts = sets.setdefault((entry.data, entry.split), {})
            parts.setdefault(entry.part, []).append(entry.cost)
        else:
            everywhere.append(entry.cost)
    for parts in sets.values():
        worst = Cost()
        for costs in parts.values():
            worst = worst.worst(Cost.of(costs))
        everywhere.append(worst)
    return Cost.of(everywhere)


def to_words(value: Any) -> dict[str, Any]:
    """A dataclass of numbers and words, JSON-ready: an infinite ε as a word."""
    return {k: "inf" if v == math.inf else v for k, v in asdict(value).items()}


def read_fields(kind: type, stored: Any) -> Any:
    """What `to_words` gave.

    Raises:
        ValueError: a field is missing, unknown, of another type or out of range.
    """
    if not isinstance(stored, Mapping):
        raise ValueError(f"{kind.__name__.lower()} must be a JSON object, got {stored!r:.100}")
    unlimited = {"epsilon": math.inf} if stored.get("epsilon") == "inf" else {}
    try:
        return kind(**{**stored, **unlimited})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"fields must be those of {kind.__name__}: {error}") from error
