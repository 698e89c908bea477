"""Ways to protect a vector of model parameters on its way to a sum, and what they cost.

A mechanism is one class: how messages are made and read, which parameter the paper's formula asks
for, what is deployed for it, and its words in the report.
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

T = TypeVar("T")
VALUE = np.dtype("<f4")
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

    def excess(self, tau: float) -> float:
        """x with TV = 1 − e^{−m x} = τ: each of m parameters is in its box with chance e^{−x}.

        With m = 10^6 neither g nor its logarithm has digits enough to give TV back; x has.
        """
        return math.inf if tau == 1 else -math.log1p(-tau) / self.parameters


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


@dataclass(frozen=True)
class Mechanism(ABC):
    """Turns clients' models into messages and messages into their mean, with one parameter g.

    `exchange` runs the real wire and measures it; `mean` is the average that comes out, without the
    wire where that is dear; `views` is all that the honest-but-curious server sees. Models have
    shape (K, m); a generator of None draws from the operating system.
    """

    parameter: float  # g as deployed: 0, variance, ρ, r, or bits of n

    name: ClassVar[str]
    mark: ClassVar[str]  # in the picture
    optimum_words: ClassVar[str] = "-"  # g* in the paper's symbol
    deployed_words: ClassVar[str] = "-"  # the parameter that ran
    reach: ClassVar[float] = 1.0  # supremum of TV
    attained: ClassVar[bool] = False  # whether some parameter has TV = reach

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
    def log_parameter(cls, tau: float, facts: Facts) -> float:
        """Natural logarithm of the g at which the formula grants TV = τ in (0, reach]."""
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


@dataclass(frozen=True)
class Unprotected(Mechanism):
    """The model itself, as 32-bit floats up and down: what the others are compared with."""

    parameter: float = 0.0
    name: ClassVar[str] = "none"
    mark: ClassVar[str] = "X"
    reach: ClassVar[float] = 0.0

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """One client's message from its model (m,)."""
        return model.numpy().astype(VALUE).tobytes()

    def read(self, message: bytes, count: int) -> tuple[Tensor, Tensor]:
        """(count,) values that the server reads out of a message, and which of them were sent."""
        values = torch.from_numpy(np.frombuffer(message, VALUE).astype(np.float64))
        return values, torch.ones(count, dtype=torch.bool)

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sends every client's real message, combines them, measures."""
        clients, m = models.shape
        messages, sending = timed(lambda: [self.message(w, generator) for w in models])
        total, adding = timed(lambda: torch.stack([self.read(sent, m)[0] for sent in messages]))
        size = sum(map(len, messages)) / clients + FLOAT_BYTES * m
        return Exchange(self._unbiased(total.mean(0)), size, sending / clients, adding)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """Every message; their sum says nothing more."""
        sent = [self.message(model, generator) for model in models]
        read = [self.read(message, models.shape[1]) for message in sent]
        return {"message": tuple(View((k,), *each) for k, each in enumerate(read))}

    def _unbiased(self, mean: Tensor) -> Tensor:
        """Mean of what was read, corrected for what was left out."""
        return mean


@dataclass(frozen=True)
class Randomisation(Unprotected):
    """Gaussian noise of one variance g on every parameter, added by every client.

    TV = 1/100 min(1, g A), eq. (15).
    """

    name: ClassVar[str] = "randomisation"
    mark: ClassVar[str] = "o"
    optimum_words: ClassVar[str] = "variance* = {:.5g}"
    deployed_words: ClassVar[str] = "var {:.3g}"
    reach: ClassVar[float] = 0.01
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.within("[0, inf)", variance=self.parameter)

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """The noisy model's 32-bit floats."""
        noise = float_noise.normal(tuple(model.shape), generator)
        return super().message(model.double() + self.parameter**0.5 * noise, generator)

    @classmethod
    def log_parameter(cls, tau: float, facts: Facts) -> float:
        """ln g = ln(100 τ / A), Theorem 6.1."""
        return math.log(100 * tau) - math.log(facts.inverse_variances)

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
class Sparsification(Unprotected):
    """Every parameter is sent with probability ρ; W/ρ stands for it in the mean, 0 for the others.

    A message is a bitmap and the values that were sent. The receiver learns *which* those are, and
    so their exact values: an attacker that reads the zeros as values fools itself, and ours does
    not. TV = 1 − ρ^m, eq. (21); ρ = 0 is TV 1.
    """

    name: ClassVar[str] = "compression"
    mark: ClassVar[str] = "^"
    optimum_words: ClassVar[str] = "rho* = {:.8g}"
    deployed_words: ClassVar[str] = "rho {:.7g}"
    reach: ClassVar[float] = 1.0
    attained: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.within("[0, 1]", rho=self.parameter)

    def message(self, model: Tensor, generator: torch.Generator | None) -> bytes:
        """The parameters that are sent, and which they are."""
        sent = float_noise.uniform(tuple(model.shape), generator) < self.parameter
        return np.packbits(sent.numpy()).tobytes() + super().message(model[sent], generator)

    def read(self, message: bytes, count: int) -> tuple[Tensor, Tensor]:
        """The exact values of the parameters that were sent, and which those are."""
        places = math.ceil(count / 8)
        bitmap = np.frombuffer(message, np.uint8, places)
        known = torch.from_numpy(np.unpackbits(bitmap, count=count).astype(bool))
        values = torch.zeros(count, dtype=torch.float64)
        values[known] = super().read(message[places:], int(known.sum()))[0]
        return values, known

    def _unbiased(self, mean: Tensor) -> Tensor:
        return mean / (self.parameter or 1.0)

    @classmethod
    def log_parameter(cls, tau: float, facts: Facts) -> float:
        """ln ρ, Theorem 6.4."""
        return -facts.excess(tau)

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
