"""Two ways to open nothing but an exact sum: secret sharing and Paillier encryption.

Both add fixed-point integers, so their means agree bit for bit, and both show the server the sum.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.research.protection.mechanisms import (
    FLOAT_BYTES,
    Exchange,
    Mechanism,
    View,
    plain_views,
    timed,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, KeyPair
from train_distributed.secure_sum import simulate_sum
from train_distributed.secure_sum.prg import new_seed, subtract_stream

STEP, BOUND = 2.0**-32, 64.0  # of the fixed-point numbers: float32's own precision at 1/256


@dataclass(frozen=True)
class ExactSum(Mechanism):
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
            "message": plain_views(decoded),
            "sum": (View(everyone, mean, torch.ones_like(mean, dtype=torch.bool)),),
        }

    @abstractmethod
    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(K, m) words that the server could take out of the clients' messages."""


@dataclass(frozen=True)
class Shares(ExactSum):
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
        vectors, encoding = timed(lambda: numbers.encode(models.double().numpy()))
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
class Paillier(ExactSum):
    """Packed ciphertexts under one key of all clients; the server multiplies, clients decrypt."""

    key_bits: int = DEPLOYED_BITS
    name: ClassVar[str] = "paillier"

    @property
    def parameter(self) -> float:
        """log2 of the modulus n."""
        return float(self.key_bits)

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Ciphertexts up and down; key generation is not counted."""
        count, m = models.shape
        numbers = self.numbers(count)
        pair = KeyPair.generate(numbers, self.key_bits)
        encoded = numbers.encode(models.double().numpy())
        messages, sending = timed(lambda: [pair.encrypt(words) for words in encoded])
        answer, adding = timed(lambda: pair.public.add(messages))
        total, opening = timed(lambda: pair.decrypt(answer, m, count))
        mean = torch.from_numpy(numbers.decode(total)) / count
        return Exchange(mean, len(messages[0]) + len(answer), sending / count + opening, adding)

    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The low words of every client's ciphertexts, repeated to the length of the model."""
        pair = _simulated_pair(self.numbers(len(encoded)), self.key_bits)
        slots = pair.public.packing.slots
        first = [pair.encrypt(words[:slots]) for words in encoded]
        words = [np.resize(np.frombuffer(each, "<u8"), encoded.shape[1]) for each in first]
        return np.stack(words).astype(np.uint64)


@cache
def _simulated_pair(numbers: FixedPoint, key_bits: int) -> KeyPair:
    """One key for all attacks of a simulation."""
    return KeyPair.generate(numbers, key_bits)
