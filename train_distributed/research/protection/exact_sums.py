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
Words = NDArray[np.uint64]


def fixed_point(clients: int) -> FixedPoint:
    """The map to integers for that many clients."""
    return FixedPoint(step=STEP, bound=BOUND, parties=clients)


@dataclass(frozen=True)
class ExactSum(Mechanism):
    """The exact sum of fixed-point numbers; nothing but the sum is opened."""

    def exchange(self, models: Tensor, generator: torch.Generator | None) -> Exchange:
        """Encodes, sends, adds and decodes."""
        clients, numbers = len(models), fixed_point(len(models))
        encoded, encoding = timed(lambda: numbers.encode(models.double().numpy()))
        total, size, seconds, server = self.added(encoded)
        mean = torch.from_numpy(numbers.decode(total)) / clients
        return Exchange(mean, size, seconds + encoding / clients, server)

    @abstractmethod
    def added(self, encoded: Words) -> tuple[Words, float, float, float]:
        """(m,) sum of (K, m) words by real messages; bytes and seconds of a client, of a server."""

    def mean(self, models: Tensor, generator: torch.Generator | None) -> Tensor:
        """The mean of the rounded models."""
        numbers = fixed_point(len(models))
        total = numbers.encode(models.double().numpy()).sum(0, dtype=np.uint64)
        return torch.from_numpy(numbers.decode(total)) / len(models)

    def views(
        self, models: Tensor, generator: torch.Generator | None
    ) -> dict[str, tuple[View, ...]]:
        """The opened sum, and the words of every message read as if they were the model."""
        numbers, mean = fixed_point(len(models)), self.mean(models, generator)
        known = torch.ones_like(mean, dtype=torch.bool)
        words = self.words(numbers.encode(models.double().numpy()))
        decoded = torch.from_numpy(numbers.decode(words))
        return {
            "message": tuple(View((k,), model, known) for k, model in enumerate(decoded)),
            "sum": (View(tuple(range(len(models))), mean, known),),
        }

    @abstractmethod
    def words(self, encoded: Words) -> Words:
        """(K, m) words that the server could take out of the clients' messages."""


@dataclass(frozen=True)
class Shares(ExactSum):
    """Additive shares among J servers: masks uniform over all 64-bit words (`secure_sum`).

    Masks bounded by r, b = r: TV = 1 − (2δ/(b+r))^m, eq. (19).
    """

    parameter: float = 2.0**63 * STEP  # r, half of all words, in units of the parameters
    servers: int = 3
    name: ClassVar[str] = "shares"
    mark: ClassVar[str] = "D"
    optimum_words: ClassVar[str] = "r* = {:.5g}"
    deployed_words: ClassVar[str] = "r {:.3g}"

    def added(self, encoded: Words) -> tuple[Words, float, float, float]:
        """Sealed shares: seeds, and the vector minus their streams; the sum returns as floats."""
        keys = [PrivateKeys.generate() for _ in range(self.servers)]
        sent, sealing = timed(lambda: [self._sealed(vector, keys) for vector in encoded])
        total, opening = timed(lambda: self._opened(sent, keys))
        size = sum(map(len, sent[0])) + FLOAT_BYTES * encoded.shape[1]
        return total, size, sealing / len(encoded), opening

    def _sealed(self, vector: Words, keys: list[PrivateKeys]) -> list[bytes]:
        masked, parts = vector.copy(), [new_seed() for _ in keys[1:]]
        for seed in parts:
            subtract_stream(masked, seed)
        parts.append(masked.tobytes())
        pairs = zip(keys, parts, strict=True)
        return [seal(key.public.sealing, part, b"") for key, part in pairs]

    def _opened(self, sent: list[list[bytes]], keys: list[PrivateKeys]) -> Words:
        total = np.zeros((len(sent[0][-1]) - SEAL_BYTES) // WORD.itemsize, WORD)
        for messages in sent:
            pairs = zip(keys, messages, strict=True)
            *seeds, masked = [open_seal(key.opening, message, b"") for key, message in pairs]
            total += np.frombuffer(masked, WORD)
            for seed in seeds:
                add_stream(total, seed)
        return total

    def words(self, encoded: Words) -> Words:
        """Words that the last server opens: the vectors minus the other servers' streams."""
        masked = encoded.copy()
        for vector in masked:
            for _ in range(self.servers - 1):
                subtract_stream(vector, new_seed())
        return masked

    @classmethod
    def log_parameter(cls, tau: float, facts: Facts) -> float:
        """ln r, with TV = 1 − (δ/r)^m."""
        return math.log(facts.half_width) + facts.excess(tau)

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


@dataclass(frozen=True)
class Paillier(ExactSum):
    """Packed ciphertexts under one key of all clients; the server multiplies, clients decrypt.

    Ciphertexts modulo n²: TV = 1 − (2δ/n²)^m, eq. (18).
    """

    parameter: float = DEPLOYED_BITS  # log2 of the modulus n
    name: ClassVar[str] = "paillier"
    mark: ClassVar[str] = "s"
    optimum_words: ClassVar[str] = "n* = {:.5g}"
    deployed_words: ClassVar[str] = "{:.0f} bits"

    def added(self, encoded: Words) -> tuple[Words, float, float, float]:
        """Ciphertexts up and down; key generation is not counted."""
        count, m = encoded.shape
        pair = KeyPair.generate(fixed_point(count), int(self.parameter))
        messages, sending = timed(lambda: [pair.encrypt(words) for words in encoded])
        answer, adding = timed(lambda: pair.add(messages))
        total, opening = timed(lambda: pair.decrypt(answer, m, count))
        return total, len(messages[0]) + len(answer), sending / count + opening, adding

    def words(self, encoded: Words) -> Words:
        """The low words of every client's ciphertexts, repeated to the length of the model."""
        pair = _simulated_pair(len(encoded), int(self.parameter))
        first = [pair.encrypt(words[: pair.packing.slots]) for words in encoded]
        words = [np.resize(np.frombuffer(each, "<u8"), encoded.shape[1]) for each in first]
        return np.stack(words).astype(np.uint64)

    @classmethod
    def log_parameter(cls, tau: float, facts: Facts) -> float:
        """ln n."""
        return (math.log(2 * facts.half_width) + facts.excess(tau)) / 2

    @classmethod
    def deploy(cls, log_parameter: float | None, settings: StudySettings) -> Self:
        """A key of n* or of the settings' bits, whichever is longer, in whole 16 bits."""
        needed = 0 if log_parameter is None else math.ceil(log_parameter / math.log(2))
        return cls(max(settings.key_bits, 16 * math.ceil(needed / 16)))


@cache
def _simulated_pair(clients: int, key_bits: int) -> KeyPair:
    """One key for all attacks of a simulation."""
    return KeyPair.generate(fixed_point(clients), key_bits)
