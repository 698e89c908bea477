"""Ways to protect a vector of model parameters on its way to a sum, and what they cost.

A mechanism is one class: how messages are made and read, which total variation the paper's formula
grants to a parameter, what is deployed for the formula's optimum, and its words in the report.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from pretrain import check
from train_distributed.privacy import float_noise
from train_distributed.research.protection.sparse import VALUE, Sparse, read_sparse, sparsify

T = TypeVar("T")
FLOAT_BYTES = VALUE.itemsize  # a parameter on an unprotected wire
KEEPS = (0.9, 0.5, 0.2, 0.05)  # ρ that are measured as well as ρ*
SPREAD = 16.0  # noise levels span the update's size over and times this


@dataclass(frozen=True)
class StudySettings:
    """Budget, and what is deployed and measured for it."""

    budget: float
    half_width: float  # δ
    key_bits: int
    servers: int
    noise_levels: int
    variance_models: int


@dataclass(frozen=True)
class Facts:
    """Numbers of the attacked model that the formulas use.

    Raises:
        ValueError: m < 1, or a number that is not finite and positive.
    """

    parameters: int  # m
    half_width: float = 1.0  # δ of the box that a plaintext lies in
    inverse_variances: float = 1.0  # A = √(Σ_i 1/s_i⁴), s_i: standard deviation of parameter i

    def __post_init__(self) -> None:
        check.at_least(1, parameters=self.parameters)
        check.positive(half_width=self.half_width, inverse_variances=self.inverse_variances)


@dataclass(frozen=True)
class Exchange:
    """Result and cost of one protected aggregation."""

    mean: Tensor  # (m,) float64
    bytes_per_client: float  # sent by one client, and the answer that it receives
    seconds_per_client: float  # CPU, mean over clients
    seconds_server: float  # CPU, of the server with most

    @property
    def seconds(self) -> float:
        """CPU seconds of one client and the busiest server."""
        return self.seconds_per_client + self.seconds_server


@dataclass(frozen=True)
class View:
    """A vector that the server reads out of what it received."""

    clients: tuple[int, ...]  # whose models it is the mean of
    values: Tensor  # (m,) float64
    known: Tensor  # (m,) bool, the entries that say something


class Mechanism(ABC):
    """Turns clients' models into messages and messages into their mean.

    `exchange` runs the real wire and measures it; `mean` is the average that comes out, without the
    wire where that is dear; `views` is all that the honest-but-curious server sees. Models have
    shape (K, m); a generator of None draws from the operating system.

    The formula gives a mechanism its total variation at a parameter g. `excess` is the scale on
    which TV is computed without loss: with m = 10^6 parameters g itself, and even its logarithm,
    has too few digits to give TV back. By default every one of m parameters lies inside its box
    with probability e^{−excess}: TV = 1 − e^{−m · excess}.
    """

    name: ClassVar[str]
    mark: ClassVar[str]  # in the picture
    optimum_words: ClassVar[str] = "-"  # g* in the paper's symbol
    deployed_words: ClassVar[str] = "-"  # the parameter that ran
    reach: ClassVar[float] = 1.0  # supremum of TV
    attained: ClassVar[bool] = False  # whether some parameter has TV = reach

    @property
    @abstractmethod
    def parameter(self) -> float:
        """The deployed g, the paper's: 0, variance, bits of n, r, or ρ."""

    @abstractmethod
    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sends every client's real message, combines them, measures."""

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """(m,) float64 mean that `exchange` returns, for long simulations."""
        return self.exchange(models, generator).mean

    @abstractmethod
    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """By name: "message", one view per client; "sum", the opened sum where there is one."""

    @classmethod
    def reaches(cls, tau: float) -> bool:
        """Whether some parameter has TV = τ."""
        return tau <= cls.reach if cls.attained else tau < cls.reach

    @classmethod
    def excess(cls, tau: float, facts: Facts) -> float:
        """The excess at which TV = τ in (0, reach]."""
        return math.inf if tau == 1 else -math.log1p(-tau) / facts.parameters

    @classmethod
    def log_parameter(cls, excess: float, facts: Facts) -> float:
        """Natural logarithm of g at an excess."""
        raise NotImplementedError

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """The mechanism that really runs for ln g*; for None, as it would run without a formula.

        Raises:
            ValueError: g* beyond what the wire can carry.
        """
        raise NotImplementedError

    @classmethod
    def levels(cls, update_size: float, settings: StudySettings) -> Sequence[Self]:
        """Other parameters to measure: the trade-off around g*; none for an exact sum.

        Args:
            update_size: root mean square of an entry of a client's update.
            settings: settings of the study.
        """
        return []


class Readable(Mechanism):
    """One message per client that the server reads: 32-bit floats up, 32-bit floats down."""

    @abstractmethod
    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """One client's message from its model (m,)."""

    def read(self, message: bytes) -> Sparse:
        """Vector that the server reads out of a message."""
        values = torch.from_numpy(np.frombuffer(message, VALUE).astype(np.float64))
        return Sparse(values, torch.ones(len(values), dtype=torch.bool), 1.0)

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sends every client's real message, combines them, measures."""
        messages, sending = timed(lambda: [self.message(w, generator) for w in models])
        mean, adding = timed(lambda: torch.stack([self.read(m).values for m in messages]).mean(0))
        size = sum(map(len, messages)) / len(models) + FLOAT_BYTES * models.shape[1]
        return Exchange(mean, size, sending / len(models), adding)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """Every message; their sum says nothing more."""
        read = [self.read(self.message(model, generator)) for model in models]
        return {"message": tuple(View((k,), s.original, s.known) for k, s in enumerate(read))}


@dataclass(frozen=True)
class Unprotected(Readable):
    """The model itself, as 32-bit floats: what the others are compared with."""

    name: ClassVar[str] = "none"
    mark: ClassVar[str] = "X"
    reach: ClassVar[float] = 0.0

    @property
    def parameter(self) -> float:
        """0: nothing is changed."""
        return 0.0

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """The model's 32-bit floats."""
        return model.numpy().astype(VALUE).tobytes()


@dataclass(frozen=True)
class Randomisation(Readable):
    """Gaussian noise of one variance g on every parameter, added by every client.

    TV = 1/100 min(1, g A), eq. (15). Excess: g A.
    """

    variance: float  # σ_ε² of one client's noise
    name: ClassVar[str] = "randomisation"
    mark: ClassVar[str] = "o"
    optimum_words: ClassVar[str] = "variance* = {:.5g}"
    deployed_words: ClassVar[str] = "var {:.3g}"
    reach: ClassVar[float] = 0.01
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.within("[0, inf)", variance=self.variance)

    @property
    def parameter(self) -> float:
        """The variance of the noise."""
        return self.variance

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """The noisy model's 32-bit floats."""
        noise = float_noise.normal(tuple(model.shape), generator)
        return (model.double() + self.variance**0.5 * noise).numpy().astype(VALUE).tobytes()

    @classmethod
    def excess(cls, tau: float, facts: Facts) -> float:
        """The excess 100 τ."""
        return 100 * tau

    @classmethod
    def log_parameter(cls, excess: float, facts: Facts) -> float:
        """ln g = ln(excess / A), Theorem 6.1."""
        return math.log(excess) - math.log(facts.inverse_variances)

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """Noise of variance g*."""
        return cls(0.0 if log_parameter is None else math.exp(log_parameter))

    @classmethod
    def levels(cls, update_size: float, settings: StudySettings) -> Sequence[Self]:
        """Standard deviations around the update's size."""
        levels = np.geomspace(1 / SPREAD, SPREAD, settings.noise_levels)
        return [cls(float((level * update_size) ** 2)) for level in levels]


@dataclass(frozen=True)
class Sparsification(Readable):
    """Every parameter is sent with probability ρ, as W/ρ.

    TV = 1 − ρ^m, eq. (21). Excess: −ln ρ; ρ = 0 is TV 1.
    """

    keep: float  # ρ
    name: ClassVar[str] = "compression"
    mark: ClassVar[str] = "^"
    optimum_words: ClassVar[str] = "rho* = {:.8g}"
    deployed_words: ClassVar[str] = "rho {:.7g}"
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.within("[0, 1]", rho=self.keep)

    @property
    def parameter(self) -> float:
        """The probability ρ of being sent."""
        return self.keep

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """The parameters that are sent, and which they are."""
        return sparsify(model, self.keep, generator)

    def read(self, message: bytes) -> Sparse:
        """The exact values of the parameters that were sent, and which those are."""
        return read_sparse(message)

    @classmethod
    def log_parameter(cls, excess: float, facts: Facts) -> float:
        """ln ρ = −excess, Theorem 6.4."""
        return -excess

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """Messages at ρ*."""
        return cls(1.0 if log_parameter is None else math.exp(log_parameter))

    @classmethod
    def levels(cls, update_size: float, settings: StudySettings) -> Sequence[Self]:
        """Fixed probabilities."""
        return [cls(keep) for keep in KEEPS]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Result of the work, and its CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
