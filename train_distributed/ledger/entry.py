"""One sum over private rows as a ledger keeps it, and how much all of them may promise."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from train_distributed import accounting
from train_distributed.privacy.composition import Cost
from train_distributed.privacy.promise import Privacy, Unit

Kind = Literal["release", "evaluation", "re-release"]
PARTS = ("", "train", "test", "evaluation")  # of the rows of a set; "": all of them
TEXTS = (
    *("kind", "data", "part", "split", "users", "images"),
    *("method", "noise", "result", "reference"),
)
SMALLEST = 1e-300  # μ² that doubles hold well
SLACK = 1e-9  # relative: what a stated ε and one computed from its noise may differ by


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One sum over private rows: what it was for, and what is known of its noise.

    Raises:
        ValueError: a field out of range, or an ε below what the noise gives.
    """

    kind: Kind
    data: str  # content hash of the embedding set, or another name of what was used
    part: str = ""  # one of `PARTS`; older ledgers hold other words, which count as all rows
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

    @classmethod
    def of(cls, privacy: Privacy, *fields: Mapping[str, Any], **more: Any) -> Self:
        """Entry of a sum that keeps this promise.

        Args:
            privacy: the promise.
            fields: of the rows and of the noise; see `ledger.fields`.
            more: all other fields.

        Raises:
            ValueError: a field out of range, or an ε below what the noise gives.
        """
        given: dict[str, Any] = {"unit": privacy.unit, "group_size": privacy.group_size}
        given |= {"epsilon": privacy.epsilon, "delta": privacy.delta}
        for each in (*fields, more):
            given |= each
        return cls(**given)

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
        """Cost that it adds to a total."""
        if self.gaussian:
            return Cost(squared_mu=max(self.mu * self.mu, SMALLEST), zeta=self.zeta)
        return Cost(epsilon=self.epsilon, delta=self.delta)

    def to_json(self) -> dict[str, Any]:
        """All fields, JSON-ready."""
        return to_words(self)

    @classmethod
    def from_json(cls, stored: Any) -> Self:
        """Reads the result of `to_json`.

        Raises:
            ValueError: a field is missing, unknown or out of range.
        """
        return read_fields(cls, stored)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Limit of all promises of a ledger together: ε at δ for one record, or one user.

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


def to_words(value: Any) -> dict[str, Any]:
    """A dataclass of numbers and words, JSON-ready: an infinite ε as a word."""
    return {k: "inf" if v == math.inf else v for k, v in asdict(value).items()}


def read_fields(kind: type, stored: Any) -> Any:
    """Reads the result of `to_words`.

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
