"""Four ways to protect a vector of model parameters on its way to a sum, and what they cost.

A mechanism offers the same protection three times: `exchange` runs the real wire and measures it,
`mean` is the average that comes out (bit for bit where it is deterministic), without the wire, for
long simulations, and `views` is all that the honest-but-curious server sees.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed import randomness
from train_distributed.protection.paillier import DEPLOYED_BITS, KeyPair
from train_distributed.protection.sparse import check_keep, read_sparse, sparsify
from train_distributed.secure_sum import FixedPoint, simulate_sum
from train_distributed.secure_sum.prg import new_seed, subtract_stream

T = TypeVar("T")
FLOAT_BYTES = 4  # a parameter on an unprotected wire
STEP, BOUND = 2.0**-32, 64.0  # of the fixed-point numbers: float32's own precision at 1/256


@dataclass(frozen=True)
class Exchange:
    """One protected aggregation, as it came out and what it took."""

    mean: Tensor  # (m,) float64
    bytes_per_client: float  # sent by one client, and the answer that it receives
    seconds_per_client: float  # CPU, mean over clients
    seconds_server: float  # CPU, of the server with most


@dataclass(frozen=True)
class View:
    """A vector that the server reads out of what it received."""

    clients: tuple[int, ...]  # whose models it is the mean of
    values: Tensor  # (m,) float64
    known: Tensor  # (m,) bool, the entries that say something


class Mechanism(ABC):
    """What turns clients' models into messages and messages into their mean.

    Every method takes models of shape (K, m); a generator of None draws from the operating system.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def parameter(self) -> float:
        """The deployed g, the paper's: 0, variance, bits of n, log2 of r, or ρ."""

    @abstractmethod
    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sends every client's real message, combines them, measures."""

    @abstractmethod
    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """(m,) float64, what `exchange` would return as the mean."""

    @abstractmethod
    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """By name: "message", one view per client; "sum", the opened sum where there is one."""


@dataclass(frozen=True)
class Unprotected(Mechanism):
    """The model itself, as 32-bit floats: what the others are compared with."""

    name: ClassVar[str] = "none"

    @property
    def parameter(self) -> float:
        """0."""
        return 0.0

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Floats up, floats down."""
        messages, sending = _timed(lambda: [_floats(model) for model in models])
        mean, adding = _timed(lambda: torch.stack([_read(m) for m in messages]).mean(0))
        size = len(messages[0]) + FLOAT_BYTES * models.shape[1]
        return Exchange(mean, size, sending / len(models), adding)

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the models as 32-bit floats."""
        return models.float().double().mean(0)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """Every model."""
        return {"message": _plain_views(models.float().double())}


@dataclass(frozen=True)
class Randomisation(Mechanism):
    """Gaussian noise of one variance on every parameter, added by every client."""

    variance: float  # σ_ε² of one client's noise
    name: ClassVar[str] = "randomisation"

    def __post_init__(self) -> None:
        if not (np.isfinite(self.variance) and self.variance >= 0):
            raise ValueError(f"variance must be finite and >= 0, got {self.variance}")

    @property
    def parameter(self) -> float:
        """The variance."""
        return self.variance

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Noisy floats up, floats down."""
        messages, sending = _timed(lambda: [_floats(self._noisy(w, generator)) for w in models])
        mean, adding = _timed(lambda: torch.stack([_read(m) for m in messages]).mean(0))
        size = len(messages[0]) + FLOAT_BYTES * models.shape[1]
        return Exchange(mean, size, sending / len(models), adding)

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the noisy models."""
        return torch.stack([self._noisy(w, generator).float().double() for w in models]).mean(0)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """Every noisy model; their sum says nothing more."""
        noisy = torch.stack([self._noisy(model, generator) for model in models])
        return {"message": _plain_views(noisy.float().double())}

    def _noisy(self, model: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = randomness.normal(tuple(model.shape), generator)
        return model.double() + self.variance**0.5 * noise


@dataclass(frozen=True)
class Compression(Mechanism):
    """Every parameter is sent with probability ρ, as W/ρ."""

    keep: float  # ρ
    name: ClassVar[str] = "compression"

    def __post_init__(self) -> None:
        check_keep(self.keep)

    @property
    def parameter(self) -> float:
        """ρ."""
        return self.keep

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sparse messages up, floats down."""
        messages, sending = _timed(lambda: [sparsify(w, self.keep, generator) for w in models])
        mean, adding = _timed(
            lambda: torch.stack([read_sparse(m).values for m in messages]).mean(0)
        )
        size = sum(map(len, messages)) / len(models) + FLOAT_BYTES * models.shape[1]
        return Exchange(mean, size, sending / len(models), adding)

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the sparsified models."""
        sent = [_dense(sparsify(model, self.keep, generator)) for model in models]
        return torch.stack(sent).mean(0)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """The exact values of the parameters that were sent, and which those are."""
        read = [read_sparse(sparsify(model, self.keep, generator)) for model in models]
        return {"message": tuple(View((k,), s.original, s.known) for k, s in enumerate(read))}


@dataclass(frozen=True)
class _Exact(Mechanism):
    """The exact sum of fixed-point numbers; nothing but the sum is opened."""

    step: float = STEP
    bound: float = BOUND

    def numbers(self, clients: int) -> FixedPoint:
        """The map to integers for that many clients."""
        return FixedPoint(step=self.step, bound=self.bound, parties=clients)

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the rounded models."""
        numbers = self.numbers(len(models))
        total = numbers.encode(models.double().numpy()).sum(0, dtype=np.uint64)
        return torch.from_numpy(numbers.decode(total)) / len(models)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """The opened sum, and the words of every message read as if they were the model."""
        everyone = tuple(range(len(models)))
        mean = self.mean(models, generator)
        words = self._words(self.numbers(len(models)).encode(models.double().numpy()))
        decoded = torch.from_numpy(self.numbers(len(models)).decode(words))
        return {
            "message": _plain_views(decoded),
            "sum": (View(everyone, mean, torch.ones_like(mean, dtype=torch.bool)),),
        }

    @abstractmethod
    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(K, m) words that the server could take out of the clients' messages."""


@dataclass(frozen=True)
class Shares(_Exact):
    """Additive shares among J servers: masks uniform over all 64-bit words (`secure_sum`)."""

    servers: int = 3
    name: ClassVar[str] = "shares"

    @property
    def parameter(self) -> float:
        """r, the largest mask: half of all words, in units of the parameters."""
        return 2.0**63 * self.step

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Real sealed and signed shares; the sum comes back as 32-bit floats."""
        numbers = self.numbers(len(models))
        vectors, encoding = _timed(lambda: numbers.encode(models.double().numpy()))
        result = simulate_sum(vectors, "shares", self.servers)
        mean = torch.from_numpy(numbers.decode(result.total)) / len(models)
        return Exchange(
            mean,
            result.bytes_per_client + FLOAT_BYTES * models.shape[1],
            result.seconds_per_client + encoding / len(models),
            result.seconds_server,
        )

    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """What the last server opens: the vectors minus the other servers' streams."""
        masked = encoded.copy()
        for vector in masked:
            for _ in range(self.servers - 1):
                subtract_stream(vector, new_seed())
        return masked


@dataclass(frozen=True)
class Paillier(_Exact):
    """Packed ciphertexts under one key of all clients; the server multiplies, clients decrypt."""

    key_bits: int = DEPLOYED_BITS
    name: ClassVar[str] = "paillier"

    @property
    def parameter(self) -> float:
        """log2 n."""
        return float(self.key_bits)

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Ciphertexts up and down; key generation is not counted."""
        count, m = models.shape
        numbers = self.numbers(count)
        pair = KeyPair.generate(numbers, self.key_bits)
        encoded = numbers.encode(models.double().numpy())
        messages, sending = _timed(lambda: [pair.public.encrypt(words) for words in encoded])
        answer, adding = _timed(lambda: pair.public.add(messages))
        total, opening = _timed(lambda: pair.decrypt(answer, m, count))
        mean = torch.from_numpy(numbers.decode(total)) / count
        return Exchange(mean, len(messages[0]) + len(answer), sending / count + opening, adding)

    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The low words of every client's ciphertexts, repeated to the length of the model."""
        pair = KeyPair.generate(self.numbers(len(encoded)), self.key_bits)
        slots = pair.public.packing.slots
        first = [pair.public.encrypt(words[:slots]) for words in encoded]
        words = [np.resize(np.frombuffer(each, "<u8"), encoded.shape[1]) for each in first]
        return np.stack(words).astype(np.uint64)


def _plain_views(models: Tensor) -> tuple[View, ...]:
    known = torch.ones(models.shape[1], dtype=torch.bool)
    return tuple(View((k,), model, known) for k, model in enumerate(models))


def _floats(model: Tensor) -> bytes:
    return model.numpy().astype("<f4").tobytes()


def _read(message: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(message, "<f4").astype(np.float64))


def _dense(message: bytes) -> Tensor:
    return read_sparse(message).values


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
