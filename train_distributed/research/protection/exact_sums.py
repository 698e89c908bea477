"""Two ways to open nothing but an exact sum: secret sharing and Paillier encryption.

Both add fixed-point integers, so their means agree bit for bit, and both show the server the sum.
"""

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.research.protection.mechanisms import (
    FLOAT_BYTES,
    Exchange,
    Facts,
    Mechanism,
    StudySettings,
    View,
    timed,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, KeyPair
from train_distributed.secure_sum.keys import SEAL_BYTES, PrivateKeys, open_seal, seal
from train_distributed.secure_sum.prg import WORD, add_stream, new_seed, subtract_stream

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
        known = torch.ones_like(mean, dtype=torch.bool)
        words = self._words(self.numbers(len(models)).encode(models.double().numpy()))
        decoded = torch.from_numpy(self.numbers(len(models)).decode(words))
        return {
            "message": tuple(View((k,), model, known) for k, model in enumerate(decoded)),
            "sum": (View(everyone, mean, known),),
        }

    @abstractmethod
    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """(K, m) words that the server could take out of the clients' messages."""


@dataclass(frozen=True)
class Shares(ExactSum):
    """Additive shares among J servers: masks uniform over all 64-bit words (`secure_sum`).

    Masks bounded by r, b = r: TV = 1 − (2δ/(b+r))^m, eq. (19). Excess: ln(r/δ).
    """

    servers: int = 3
    name: ClassVar[str] = "shares"
    mark: ClassVar[str] = "D"
    optimum_words: ClassVar[str] = "r* = {:.5g}"
    deployed_words: ClassVar[str] = "r {:.3g}"

    @property
    def parameter(self) -> float:
        """r, the largest mask: half of all words, in units of the parameters."""
        return 2.0**63 * self.step

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Sealed shares: seeds, and the vector minus their streams; the sum returns as floats."""
        numbers = self.numbers(len(models))
        keys = [PrivateKeys.generate() for _ in range(self.servers)]
        vectors, encoding = timed(lambda: numbers.encode(models.double().numpy()))
        sent, sealing = timed(lambda: [self._sealed(vector, keys) for vector in vectors])
        total, opening = timed(lambda: self._opened(sent, keys))
        mean = torch.from_numpy(numbers.decode(total)) / len(models)
        return Exchange(
            mean,
            sum(map(len, sent[0])) + FLOAT_BYTES * models.shape[1],
            (sealing + encoding) / len(models),
            opening,
        )

    def _sealed(self, vector: NDArray[np.uint64], keys: list[PrivateKeys]) -> list[bytes]:
        masked, parts = vector.copy(), [new_seed() for _ in keys[1:]]
        for seed in parts:
            subtract_stream(masked, seed)
        parts.append(masked.tobytes())
        pairs = zip(keys, parts, strict=True)
        return [seal(key.public.sealing, part, b"") for key, part in pairs]

    def _opened(self, sent: list[list[bytes]], keys: list[PrivateKeys]) -> NDArray[np.uint64]:
        total = np.zeros((len(sent[0][-1]) - SEAL_BYTES) // WORD.itemsize, WORD)
        for messages in sent:
            pairs = zip(keys, messages, strict=True)
            *seeds, masked = [open_seal(key.opening, message, b"") for key, message in pairs]
            total += np.frombuffer(masked, WORD)
            for seed in seeds:
                add_stream(total, seed)
        return total

    @classmethod
    def log_parameter(cls, excess: float, facts: Facts) -> float:
        """ln r = ln δ + excess."""
        return math.log(facts.half_width) + excess

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """Masks over all 64-bit words, whatever r* is.

        Raises:
            ValueError: r* beyond the largest mask.
        """
        shares = cls(servers=settings.servers)
        if log_parameter is not None and log_parameter > math.log(shares.parameter):
            raise ValueError(
                f"r* must be <= {shares.parameter:g}, the largest mask of a 64-bit word, "
                f"got e^{log_parameter:g}"
            )
        return shares

    def _words(self, encoded: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Words that the last server opens: the vectors minus the other servers' streams."""
        masked = encoded.copy()
        for vector in masked:
            for _ in range(self.servers - 1):
                subtract_stream(vector, new_seed())
        return masked


@dataclass(frozen=True)
class Paillier(ExactSum):
    """Packed ciphertexts under one key of all clients; the server multiplies, clients decrypt.

    Ciphertexts modulo n²: TV = 1 − (2δ/n²)^m, eq. (18). Excess: ln(n²/2δ).
    """

    key_bits: int = DEPLOYED_BITS
    name: ClassVar[str] = "paillier"
    mark: ClassVar[str] = "s"
    optimum_words: ClassVar[str] = "n* = {:.5g}"
    deployed_words: ClassVar[str] = "{:.0f} bits"

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

    @classmethod
    def log_parameter(cls, excess: float, facts: Facts) -> float:
        """ln n = (ln 2δ + excess)/2."""
        return (math.log(2 * facts.half_width) + excess) / 2

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """A key of n* or of the settings' bits, whichever is longer, in whole 16 bits."""
        needed = 0 if log_parameter is None else math.ceil(log_parameter / math.log(2))
        return cls(key_bits=max(settings.key_bits, 16 * math.ceil(needed / 16)))

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
