"""One sum over private rows as a ledger keeps it, and how much all of them may promise."""

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from pretrain import check
from train_distributed import accounting
from train_distributed.privacy.composition import COST_ROUND_UP, Cost
from train_distributed.privacy.promise import NoiseBy, Privacy, Unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embed.store import EmbeddingSet
    from train_distributed.privacy.guarantee import Guarantee
    from train_distributed.privacy.mechanism import DiscreteGaussian

Reserve = Callable[[Mapping[str, Any]], None]  # of fields of an entry; raises to stop a release
Kind = Literal["release", "evaluation", "re-release"]
NOT_STATED = "not stated"
Adder = Literal[NoiseBy, "not stated"]
PARTS = ("", "train", "test", "evaluation")  # of the rows of a set; "": all of them
TEXTS = (
    *("kind", "data", "part", "split", "users", "images"),
    *("method", "noise", "result", "reference"),
)
SMALLEST = 1e-300  # μ² that doubles hold well
TOLERANCE = 1e-9  # relative: by which a stated ε and one computed from its noise may differ


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
    noise_by: Adder = NOT_STATED  # who adds it; older ledgers do not say
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
        check.one_of(get_args(Kind), kind=self.kind)
        check.one_of(get_args(Adder), noise_by=self.noise_by)
        if not self.data:
            raise ValueError("data must name the rows that are used, got none")
        if not self.gaussian and self.delta == 0 and self.epsilon > 0:
            self.promise(1e-9).validate()  # pure ε
        else:
            self.promise(self.delta).validate()
        check.within("[0, inf)", zeta=self.zeta, compositions=self.compositions)
        if (self.sigma is None) != (self.sensitivity is None):
            raise ValueError("sigma and sensitivity must be given both or neither, got one")
        if self.sigma is not None and self.sensitivity is not None:
            check.within("[0, inf)", sigma=self.sigma)
            check.positive(sensitivity=self.sensitivity, compositions=self.compositions)
            if not self._holds():
                given = self.cost.at(self.delta)
                raise ValueError(
                    f"epsilon must be >= {given:.7g}, what the noise gives, got {self.epsilon:.7g}"
                )

    def _holds(self) -> bool:
        """Whether the noise gives the stated ε at the stated δ."""
        left = self.epsilon * (1 + TOLERANCE) - 2 * self.zeta
        if math.isinf(self.mu) or not left > 0:
            return math.isinf(left)
        found = accounting.delta(left, 1 / math.sqrt(self.cost.squared_mu))
        return found * math.exp(self.zeta) <= self.delta

    @classmethod
    def of(cls, privacy: Privacy, *fields: Mapping[str, Any], **more: Any) -> Self:
        """Entry of a sum that keeps this promise, with the `row_fields` and those of the noise.

        Raises:
            ValueError: a field out of range, or an ε below what the noise gives.
        """
        given: dict[str, Any] = {"unit": privacy.unit, "group_size": privacy.group_size}
        given |= {"epsilon": privacy.epsilon, "delta": privacy.delta}
        given |= {"noise_by": privacy.noise_by}
        for each in (*fields, more):
            given |= each
        return cls(**given)

    def same_sum(self, asked: "Entry") -> bool:
        """Whether this entry is of the sum that is asked for again, with the same noise.

        Its kind and result may be other ones, and an older entry does not say who adds the noise.
        """
        by = asked.noise_by if self.noise_by == NOT_STATED else self.noise_by
        return replace(self, kind=asked.kind, result=asked.result, noise_by=by) == asked

    def same_rows(self, other: "Entry") -> bool:
        """Whether both are of the same rows, or of the same images."""
        return self.data == other.data or self.images == other.images != ""

    @property
    def gaussian(self) -> bool:
        """Whether its noise is known to be Gaussian, and so adds up as such."""
        return self.sigma is not None

    def promise(self, delta: float) -> Privacy:
        """Its unit, group and ε, at this δ."""
        return Privacy(self.epsilon, delta, unit=self.unit, group_size=self.group_size)

    @property
    def mu(self) -> float:
        """√C times sensitivity over noise; 0 where it is not Gaussian, infinite without noise."""
        if self.sigma is None or self.sensitivity is None:
            return 0.0
        moved = math.sqrt(self.compositions) * self.sensitivity
        return moved / self.sigma if self.sigma else math.inf

    @property
    def cost(self) -> Cost:
        """Cost that it adds to a total."""
        if self.gaussian:
            return Cost(squared_mu=max(self.mu * self.mu, SMALLEST), zeta=self.zeta)
        return Cost(epsilon=self.epsilon, delta=self.delta)


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
        """Whether this limit allows nothing that the other forbids; a user's ε covers records."""
        units = self.unit == other.unit or self.unit == "user"
        return units and self.epsilon <= other.epsilon and self.delta <= other.delta


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


def hash_of(values: "NDArray[Any]") -> str:
    """SHA-256 of an array's values, hexadecimal."""
    return hashlib.sha256(values.tobytes()).hexdigest()


def row_fields(embeddings: "EmbeddingSet", part: str) -> dict[str, str]:
    """Fields of the rows of a part: "train", "evaluation", disjoint, or "" for all."""
    users = embeddings.users
    images = embeddings.meta.get("data_hash")
    return {
        "data": embeddings.content_hash(),
        "part": part,
        "split": hash_of(embeddings.split),
        "users": "" if users is None else hash_of(users),
        "images": images if isinstance(images, str) else "",
    }


def simulated_fields(guarantee: "Guarantee") -> dict[str, Any]:
    """Fields of the noise of sums in floating point, or of sums without noise.

    Where several share the promise, any of their guarantees will do: μ² is that of all.
    """
    return {
        "noise": "float" if guarantee.privacy.private else "none",
        "sigma": guarantee.noise_multiplier * guarantee.sensitivity,
        "sensitivity": guarantee.sensitivity,
        "compositions": guarantee.compositions,
    }


def gaussian_fields(*planned: "DiscreteGaussian") -> dict[str, Any]:
    """Fields of the noise of a sum of integers, or of several sums that are one entry.

    Several are stated as the one Gaussian that they are together: noise 1/μ at sensitivity 1.
    """
    if len(planned) == 1:
        (only,) = planned
        noise = {"sigma": only.certain_std, "sensitivity": only.charged_sensitivity}
        return {"noise": "discrete", "zeta": only.zeta} | noise
    together = Cost.of(each.cost() for each in planned)
    noise = {"sigma": 1 / (math.sqrt(together.squared_mu) * COST_ROUND_UP), "sensitivity": 1.0}
    return {"noise": "discrete", "zeta": together.zeta} | noise
