"""The one sum over all users, with every user's share of the noise in it."""

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from train_distributed.one_shot.statistic import Statistic, Submission, submissions
from train_distributed.one_shot.users import Chunk
from train_distributed.privacy.discrete_gaussian import NoiseSampler, add_noise, discrete_gaussian
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.privacy.float_noise import gaussian
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism, calibrate
from train_distributed.secure_sum import SumResult
from train_distributed.secure_sum.simulate_shares import SharesSum

GRID_EXPONENTS = range(20, 7, -1)
EXACT_STEPS = 2.0**50  # float64 sums, scaled and unscaled, of fewer steps are whole
SERVERS = 3
BLOCK = 1 << 22  # numbers of submissions that are made together
PROTOCOL = f"additive shares among {SERVERS} servers, all in one process"


@dataclass
class FloatSum:
    """A simulation in floating point: the users' noises are drawn as the one Gaussian they add to.

    m independent draws of N(0, s²) sum to N(0, m s²), so this is the same distribution. Marked
    unsuitable for release, as all floating-point noise is.
    """

    dimension: int
    local_std: float  # s, of each user's noise in the scaled submission; 0: none
    generator: torch.Generator
    bare: frozenset[int] = frozenset()  # users whose noise an attacker knows: it adds nothing
    grid: None = None
    _sum: Tensor = field(init=False)
    _users: int = 0  # whose noise is in the total

    def __post_init__(self) -> None:
        self._sum = torch.zeros(self.dimension, dtype=torch.float64)

    def add(self, users: Tensor, submissions: Tensor) -> None:
        """Takes (u, D) float64 scaled submissions of these (u,) users, or (1, D) their sum."""
        self._sum += submissions.sum(0)
        self._users += sum(user not in self.bare for user in users.tolist())

    def total(self) -> Tensor:
        """(D,) float64 sum of all submissions with the noise of those who are not bare."""
        std = self.local_std * self._users**0.5
        return self._sum + gaussian(self.dimension, std, self.generator) if std else self._sum

    def report(self) -> dict[str, Any]:
        """The kind of noise, and what a user would send."""
        return {
            "noise": "float" if self.local_std else "none",
            "local_noise_std": self.local_std,
            "bytes_per_user": 8 * self.dimension,
        }


@dataclass
class IntegerEncoder:
    """Encodes submissions as noised whole numbers and decodes their sum; it holds no sum itself."""

    plan: DiscreteGaussianMechanism
    code: FixedPoint  # of the scaled submission, or of whole steps where they differ by coordinate
    grid: float | None  # rows must be multiples of it; None: any rows

    @classmethod
    def of(
        cls,
        method: Submission,
        guarantee: Guarantee,
        sizes: Tensor,
        zeta: float = 0.0,
        bits: int = 64,
        **own: Any,
    ) -> Self:
        """The grid, noise and encoding of a method for users of these sizes.

        `zeta` is that of all sums which share the promise; see `integer_gaussian.calibrate`.
        `bits` are those of a word in which the sum is taken: fewer of them, and the grid is
        coarser; `own` are further fields.

        Trained weights are rounded to a step that `calibrate` chooses and charges. Statistics of
        rows on a grid are whole steps already; the finest grid is taken whose sum cannot wrap
        around, and where float64 holds every user's own sum exactly: rounding it would move it by
        more than its sensitivity says. Those that a users' clip makes shorter are rounded to whole
        steps again, which is charged.

        Raises:
            ValueError: the sum could wrap around, or one user's would not be exact.
        """
        bound, users = method.entry_bound(int(sizes.max())), guarantee.users
        planned = partial(
            calibrate,
            guarantee.privacy.epsilon,
            guarantee.privacy.delta,
            sensitivity=guarantee.joint_sensitivity,
            honest=guarantee.honest,
            dimension=method.dimension,
            rounded_users=0 if method.additive else guarantee.touched_users,
            share=guarantee.share,
            zeta=zeta,
        )
        if method.grid_powers is None:
            plan = planned(step=None)
            return cls(plan, plan.fixed_point(bound, users, bits), None, **own)
        for exponent in GRID_EXPONENTS:
            grid = 2.0**-exponent
            steps = (grid ** method.grid_powers.double() * method.scale).numpy()
            plan = planned(step=steps)
            finest = float(np.min(steps))
            try:
                if bound / finest > EXACT_STEPS:
                    raise ValueError(
                        f"rows of a user must sum to at most 2^50 steps, got {bound / finest:.4g}"
                    )
                code = FixedPoint(1.0, bound / finest, users, plan.local_std / finest, bits)
            except ValueError:
                if exponent == GRID_EXPONENTS[-1]:
                    raise
                continue
            return cls(plan, code, grid, **own)
        raise AssertionError("unreachable: the last grid returns or raises")

    @property
    def local_std(self) -> float:
        """Standard deviation of what each user adds, in scaled units: σ as it is deployed."""
        return self.plan.local_std

    def encode(self, submission: np.ndarray) -> np.ndarray:
        """(D,) scaled float64 to (D,) uint64, without noise."""
        if self.grid is None:
            return self.code.encode(submission)
        return self.code.encode_exact(np.rint(submission / self.plan.step))

    def noised(self, words: np.ndarray, sampler: NoiseSampler = discrete_gaussian) -> np.ndarray:
        """(D,) uint64 what `encode` gave with one user's share of the noise, drawn afresh."""
        return add_noise(words, self.plan.stds_in_steps, sampler)

    def decode(self, words: np.ndarray) -> Tensor:
        """(D,) uint64 sum to (D,) float64 scaled."""
        decoded = self.code.decode(words)
        return torch.from_numpy(decoded if self.grid is None else decoded * self.plan.step)

    def report(self) -> dict[str, Any]:
        """The kind of noise, the grid, and what discreteness costs; nothing about a sum."""
        return {
            "noise": "discrete",
            "local_noise_std": self.local_std,
            "step": float(np.max(self.plan.step)),
            "log10_zeta": self.plan.log10_zeta,
        }


@dataclass
class IntegerSum(IntegerEncoder):
    """Deployed sum in one process: every user's own discrete noise, and one secure sum."""

    parties: int  # w
    minimum: int  # m_min
    sampler: NoiseSampler = discrete_gaussian
    bare: frozenset[int] = frozenset()  # users whose noise an attacker knows: it adds nothing
    _alone: np.ndarray | None = field(default=None, init=False)  # what a single user sent
    _result: SumResult | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        method: Submission,
        guarantee: Guarantee,
        sizes: Tensor,
        zeta: float = 0.0,
        bits: int = 64,
        **own: Any,
    ) -> Self:
        """An empty sum, encoded as `IntegerEncoder.of` says."""
        own |= {"parties": guarantee.users, "minimum": guarantee.min_survivors}
        return super().of(method, guarantee, sizes, zeta, bits, **own)

    def add(self, users: Tensor, submissions: Tensor) -> None:
        """Takes (u, D) float64 scaled submissions; each leaves its user encoded and noised."""
        for user, submission in zip(users.tolist(), submissions.numpy(), strict=True):
            words = self.encode(submission)
            sent = words if user in self.bare else self.noised(words, self.sampler)
            if self.parties == 1:
                self._alone = sent
            else:
                self._protocol.add(user, sent)

    @cached_property
    def _protocol(self) -> SharesSum:
        return SharesSum(self.parties, self.plan.dimension, SERVERS, self.minimum)

    def total(self) -> Tensor:
        """(D,) float64, after protocol A has summed all that was sent."""
        if self._alone is not None:
            return self.decode(self._alone)
        self._result = self._protocol.result()
        return self.decode(self._result.total)

    def report(self) -> dict[str, Any]:
        """Facts of `IntegerEncoder`, and the bytes sent; raises ValueError before `total`."""
        if self.parties > 1 and self._result is None:
            raise ValueError("report must come after total, which sums; got no sum yet")
        alone = {"secure_sum": "none, a single user", "bytes_per_user": 0}
        if self._result is None:
            return super().report() | alone
        sent = self._result.bytes_per_client
        return super().report() | {"secure_sum": PROTOCOL, "bytes_per_user": sent}


def add_chunk(summation: FloatSum | IntegerSum, method: Statistic, chunk: Chunk) -> None:
    """Adds the submissions of a chunk's users, in memory that their number does not change.

    Statistics are sums over rows, unless users are clipped: in floating point, where all noise is
    drawn at the end, those of all rows are taken at once.
    """
    generator = summation.generator if isinstance(summation, FloatSum) else None
    if method.additive and generator is not None:
        summation.add(chunk.users, submissions(method, chunk.pooled(), summation.grid))
        return
    whole = method.grid_powers is None
    portions = [chunk] if whole else chunk.portions(max(1, BLOCK // method.dimension))
    for portion in portions:
        summation.add(portion.users, submissions(method, portion, summation.grid, generator))
