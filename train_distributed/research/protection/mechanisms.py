"""Four ways to protect a vector of model parameters on its way to a sum, and what they cost.

A mechanism offers the same protection three times: `exchange` runs the real wire and measures it,
`mean` is the average that comes out (bit for bit where it is deterministic), without the wire, for
long simulations, and `views` is all that the honest-but-curious server sees.

Sparsification is eq. (20) of Zhang et al. 2024: W^S_i = W_i / ρ with probability ρ, else 0; its
mean is W_i. The receiver learns *which* parameters were sent, and so their exact values: an
attacker that reads the zeros as values fools itself, and ours does not (`Sparse.known`).
"""

import math
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.privacy import float_noise

HEADER = struct.Struct("<IIf")  # m, number of values, ρ as sent
VALUE, INDEX = np.dtype("<f4"), np.dtype("<u4")
T = TypeVar("T")
FLOAT_BYTES = 4  # a parameter on an unprotected wire


@dataclass(frozen=True)
class Sparse:
    """A sparsified vector as its receiver reads it."""

    values: Tensor  # (m,) float64, W / ρ where sent, else 0
    known: Tensor  # (m,) bool, which were sent
    keep: float  # ρ

    @property
    def original(self) -> Tensor:
        """(m,) float64: W itself where sent, 0 elsewhere."""
        return self.values * self.keep


def sparsify(values: Tensor, keep: float, generator: torch.Generator | None) -> bytes:
    """Draws what is kept and writes the message; indices or a bitmap, whichever is shorter.

    Args:
        values: (m,) float, finite.
        keep: ρ in [0, 1]; at 0 nothing is sent.
        generator: None draws from the operating system.

    Raises:
        ValueError: ρ outside [0, 1].
    """
    check_keep(keep)
    sent = (float_noise.uniform(tuple(values.shape), generator) < keep).numpy()
    scaled = values.double().numpy()[sent] / (keep or 1.0)
    header = HEADER.pack(len(values), len(scaled), keep)
    return header + _places(sent) + scaled.astype(VALUE).tobytes()


def read_sparse(message: bytes) -> Sparse:
    """Reads a message of `sparsify`.

    Raises:
        ValueError: a message that is not one.
    """
    if len(message) < HEADER.size:
        raise ValueError(f"message must have {HEADER.size} bytes at least, got {len(message)}")
    count, kept, keep = HEADER.unpack_from(message)
    places = min(kept * INDEX.itemsize, math.ceil(count / 8))
    expected = HEADER.size + places + kept * VALUE.itemsize
    if len(message) != expected or kept > count:
        raise ValueError(f"message must have {expected} bytes, got {len(message)}")
    octets = np.frombuffer(message, np.uint8, places, HEADER.size)
    known = np.zeros(count, bool)
    if kept * INDEX.itemsize < math.ceil(count / 8):
        indices = octets.view(INDEX)
        if kept and indices.max() >= count:
            raise ValueError(f"message must name parameters below {count}, got {indices.max()}")
        known[indices] = True
    else:
        known = np.unpackbits(octets, count=count).astype(bool)
    if known.sum() != kept:
        raise ValueError(f"message must name {kept} parameters, got {known.sum()}")
    values = np.zeros(count)
    values[known] = np.frombuffer(message, VALUE, kept, HEADER.size + places)
    return Sparse(torch.from_numpy(values), torch.from_numpy(known), keep)


def check_keep(keep: float) -> None:
    """Raises ValueError unless ρ is a probability."""
    if not 0 <= keep <= 1:
        raise ValueError(f"rho must be in [0, 1], got {keep}")


def _places(sent: NDArray[np.bool_]) -> bytes:
    indices = np.flatnonzero(sent).astype(INDEX)
    bitmap = math.ceil(len(sent) / 8)
    return indices.tobytes() if indices.nbytes < bitmap else np.packbits(sent).tobytes()


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
        """0: nothing is changed."""
        return 0.0

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Floats up, floats down."""
        messages, sending = timed(lambda: [_floats(model) for model in models])
        mean, adding = timed(lambda: torch.stack([_read(m) for m in messages]).mean(0))
        size = len(messages[0]) + FLOAT_BYTES * models.shape[1]
        return Exchange(mean, size, sending / len(models), adding)

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the models as 32-bit floats."""
        return models.float().double().mean(0)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """Every client's model."""
        return {"message": plain_views(models.float().double())}


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
        """The variance of the noise."""
        return self.variance

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Noisy floats up, floats down."""
        messages, sending = timed(lambda: [_floats(self._noisy(w, generator)) for w in models])
        mean, adding = timed(lambda: torch.stack([_read(m) for m in messages]).mean(0))
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
        return {"message": plain_views(noisy.float().double())}

    def _noisy(self, model: Tensor, generator: torch.Generator | None) -> Tensor:
        noise = float_noise.normal(tuple(model.shape), generator)
        return model.double() + self.variance**0.5 * noise


@dataclass(frozen=True)
class Sparsification(Mechanism):
    """Every parameter is sent with probability ρ, as W/ρ."""

    keep: float  # ρ
    name: ClassVar[str] = "compression"

    def __post_init__(self) -> None:
        check_keep(self.keep)

    @property
    def parameter(self) -> float:
        """The probability ρ of being sent."""
        return self.keep

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sparse messages up, floats down."""
        messages, sending = timed(lambda: [sparsify(w, self.keep, generator) for w in models])
        mean, adding = timed(lambda: torch.stack([read_sparse(m).values for m in messages]).mean(0))
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


def plain_views(models: Tensor) -> tuple[View, ...]:
    """One view per client of (K, m) models of which every entry is seen."""
    known = torch.ones(models.shape[1], dtype=torch.bool)
    return tuple(View((k,), model, known) for k, model in enumerate(models))


def _floats(model: Tensor) -> bytes:
    return model.numpy().astype("<f4").tobytes()


def _read(message: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(message, "<f4").astype(np.float64))


def _dense(message: bytes) -> Tensor:
    return read_sparse(message).values


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What the work returns, and its CPU seconds."""
    start = time.process_time()
    result = work()
    return result, time.process_time() - start
