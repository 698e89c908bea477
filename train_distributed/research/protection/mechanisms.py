"""Ways to protect a vector of model parameters on its way to a sum, and what they cost.

A mechanism is one class: how messages are made and read, which parameter the paper's formula asks
for, what is deployed for it, and its words in the report. Secret sharing and Paillier encryption
add fixed-point integers, so their means agree bit for bit, and both show the server the sum alone.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pretrain import check
from pretrain.cli.json_text import read_object
from train_distributed.privacy import float_noise
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.research.protection.paillier import DEPLOYED_BITS, KeyPair
from train_distributed.secure_sum.keys import SEAL_BYTES, PrivateKeys, open_seal, seal
from train_distributed.secure_sum.prg import WORD, add_stream, new_seed, subtract_stream

T = TypeVar("T")
VALUE = np.dtype("<f4")
FLOAT_BYTES = VALUE.itemsize  # a parameter on an unprotected wire
KEEPS = (0.9, 0.5, 0.2, 0.05)  # ρ that are measured as well as ρ*
OF_IMAGES = {"step": 0.1, "models": 3, "steps": 0}  # defaults of a network instead of a head
SPREAD = 16.0  # noise levels span the update's size over and times this
STEP, BOUND = 2.0**-32, 64.0  # of the fixed-point numbers: float32's own precision at 1/256
Words = NDArray[np.uint64]


class StudySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a study that its file may give; a comment explains each."""

    components: int | None = None  # of the public embeddings; None: 768, or 32 without data
    rows: int = 500  # most records of one client
    test_rows: int = 2000  # for images
    batch: int = 1  # S, records in one client's update
    step: float = 2.0  # learning rate of a client's gradient step
    models: int = 12  # M, models to attack
    steps: int = 20  # training rounds R before a model is attacked
    victims: int | None = None  # clients to attack; None: all
    threshold: float = 0.9  # similarity above which a record counts as recovered
    half_width: float = 1e-3  # δ of the box that a plaintext lies in, of the formulas only
    key_bits: int = DEPLOYED_BITS  # of the shortest Paillier key to deploy
    servers: int = 3  # J of secret sharing
    noise_levels: int = 5  # to measure in addition to the formula's optimum
    variance_models: int = 32  # from which the parameters' deviations are estimated

    @classmethod
    def read(cls, path: Path | None, *, images: bool) -> "StudySettings":
        """Settings of a JSON file, defaults for the others; None: defaults alone.

        Args:
            path: the file.
            images: whether a network of images is attacked, which has defaults of its own.

        Raises:
            ValueError: unreadable, an unknown name or a value of another type; names the file.
        """
        given: dict[str, Any] = {} if path is None else read_object(path)
        if unknown := sorted(given.keys() - set(cls.__struct_fields__)):
            known = ", ".join(cls.__struct_fields__)
            raise ValueError(f"{path} must have names of {known}, got {', '.join(unknown)}")
        for name, value in given.items():  # one by one, so that the error names the setting
            try:
                msgspec.convert({name: value}, cls)
            except (msgspec.ValidationError, UnicodeError) as error:
                rule = str(error).partition(" - at")[0]
                raise ValueError(f"{path}: {name}: {rule}, got {value!r:.80}") from error
        return msgspec.convert((OF_IMAGES if images else {}) | given, cls)


@dataclass(frozen=True)
class FormulaInputs:
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
    def log_parameter(cls, tau: float, facts: FormulaInputs) -> float:
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
    def log_parameter(cls, tau: float, facts: FormulaInputs) -> float:
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
    def log_parameter(cls, tau: float, facts: FormulaInputs) -> float:
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
    def log_parameter(cls, tau: float, facts: FormulaInputs) -> float:
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
    def log_parameter(cls, tau: float, facts: FormulaInputs) -> float:
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
