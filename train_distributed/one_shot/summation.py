"""The one sum over all users, with the noise in it: every user's share, or that of the servers.

Here all parties are one process, which sees every submission; `secure_sum` is for those who must
not.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from embed.store import BLOCK
from pretrain import check
from train_distributed.one_shot.statistic import Statistic, Submission, submissions
from train_distributed.one_shot.users import Chunk
from train_distributed.privacy.discrete_gaussian import NoiseSampler, add_noise, discrete_gaussian
from train_distributed.privacy.fixed_point import FixedPoint
from train_distributed.privacy.float_noise import gaussian
from train_distributed.privacy.guarantee import ROUND_UP, Guarantee
from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism, calibrate
from train_distributed.privacy.promise import SERVERS

GRID_EXPONENTS = range(20, 7, -1)  # size: grids that are tried, the finest first
MOST_NORM = 2.0**31  # guard: of a vector in steps, of which `proofs` can prove the length
EXACT_STEPS = 2.0**50  # guard: float64 sums, scaled and unscaled, of fewer steps are whole
NO_PROTOCOL = "none, one process added all submissions"


@dataclass
class FloatSum:
    """A simulation in floating point: all noise is drawn as the one Gaussian it adds up to.

    m independent draws of N(0, s²) sum to N(0, m s²), so this is the same distribution. Marked
    unsuitable for release, as all floating-point noise is.
    """

    dimension: int
    local_std: float  # s, of each share of the noise in the scaled submission; 0: none
    generator: torch.Generator
    bare: frozenset[int] = frozenset()  # users or servers whose noise an attacker knows
    servers: int = 0  # that add the noise; 0: users do
    grid: None = None
    _sum: Tensor = field(init=False)
    _shares: int = field(init=False)  # of the noise in the total

    def __post_init__(self) -> None:
        self._sum = torch.zeros(self.dimension, dtype=torch.float64)
        self._shares = self.servers - len(self.bare) if self.servers else 0

    def add(self, users: Tensor, submissions: Tensor) -> None:
        """Takes (u, D) float64 scaled submissions of these (u,) users, or (1, D) their sum."""
        self._sum += submissions.sum(0)
        if not self.servers:
            self._shares += sum(user not in self.bare for user in users.tolist())

    def noise_std(self, users: int) -> float:
        """Standard deviation of the noise in a scaled sum over so many users."""
        return self.local_std * math.sqrt(self.servers or users)

    def total(self) -> Tensor:
        """(D,) float64 sum of all submissions with the noise of those who are not bare."""
        std = self.local_std * math.sqrt(self._shares)
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
    servers: int = field(default=0, kw_only=True)  # that add the noise; 0: users do

    @classmethod
    def of(
        cls,
        method: Submission,
        guarantee: Guarantee,
        sizes: Tensor,
        zeta: float = 0.0,
        **own: Any,
    ) -> Self:
        """The grid, noise and encoding of a method for users of these sizes.

        `zeta` is that of all sums which share the promise; see `integer_gaussian.calibrate`.
        `own` are further fields.

        Trained weights are rounded to a step that `calibrate` chooses and charges. Statistics of
        rows on a grid are whole steps already; the finest grid is taken whose sum cannot wrap
        around, and where float64 holds every user's own sum exactly: rounding it would move it by
        more than its sensitivity says. Those that a users' clip makes shorter are rounded to whole
        steps again, which is charged; and so are all where servers add the noise, since what a user
        proves of its vector's length needs one step for all of it.

        Raises:
            ValueError: the sum could wrap around, or one user's would not be exact.
        """
        bound, users = method.entry_bound(int(sizes.max())), guarantee.users
        by_servers = guarantee.privacy.noise_by == "servers"
        own |= {"servers": SERVERS} if by_servers else {}
        adders = max(users, SERVERS) if by_servers else users
        rounded = by_servers or not method.additive
        planned = partial(
            calibrate,
            guarantee.privacy.epsilon,
            guarantee.privacy.delta,
            sensitivity=guarantee.joint_sensitivity,
            honest=guarantee.honest,
            dimension=method.dimension,
            rounded_users=guarantee.touched_users if rounded else 0,
            share=guarantee.share,
            zeta=zeta,
        )
        if method.grid_powers is None:
            plan = cls._provable(planned, method, sizes) if by_servers else planned(step=None)
            return cls(plan, plan.fixed_point(bound, adders), None, **own)
        for exponent in GRID_EXPONENTS:
            grid = 2.0**-exponent
            steps = (grid ** method.grid_powers.double() * method.scale).numpy()
            finest = float(np.min(steps))
            try:
                if bound / finest > EXACT_STEPS:
                    raise ValueError(
                        f"rows of a user must sum to at most 2^50 steps, got {bound / finest:.4g}"
                    )
                if by_servers:
                    plan = cls._provable(planned, method, sizes)
                    step, rounding = float(plan.step), 0.5
                else:
                    plan, step, rounding = planned(step=steps), finest, 0.0
                most, std = bound / step + rounding, plan.local_std / step
                code = FixedPoint(1.0, most, adders, std)
            except ValueError:
                if exponent == GRID_EXPONENTS[-1]:
                    raise
                continue
            return cls(plan, code, grid, **own)
        raise AssertionError("unreachable: the last grid returns or raises")

    @staticmethod
    def _provable(
        planned: Callable[..., DiscreteGaussianMechanism], method: Submission, sizes: Tensor
    ) -> DiscreteGaussianMechanism:
        """With the finest step, one for all entries, at which every length can be proved."""
        plan = planned(step=None)
        rounded = math.sqrt(method.dimension) + 2
        least = method.norm_bounds(sizes).max().item() * ROUND_UP / (MOST_NORM - rounded)
        step = 2.0 ** math.ceil(math.log2(least))
        return plan if plan.step >= step else planned(step=step)

    def norm_bounds(self, method: Submission, sizes: Tensor) -> list[int]:
        """Length in steps that no encoded submission of users of these (users,) sizes exceeds."""
        rounded = math.sqrt(method.dimension) / 2
        longest = method.norm_bounds(sizes) * ROUND_UP / float(self.plan.step)
        return [math.floor(each + rounded) + 1 for each in longest.tolist()]

    @property
    def local_std(self) -> float:
        """Standard deviation of each share of the noise, in scaled units: σ as it is deployed."""
        return self.plan.local_std

    def noise_std(self, users: int) -> float:
        """Standard deviation of the noise in a scaled sum over so many users."""
        return self.local_std * math.sqrt(self.servers or users)

    def encode(self, submission: np.ndarray) -> np.ndarray:
        """(D,) scaled float64 to (D,) uint64, without noise."""
        if self.grid is None:
            return self.code.encode(submission)
        return self.code.encode_exact(np.rint(submission / self.plan.step))

    def noised(self, words: np.ndarray, sampler: NoiseSampler = discrete_gaussian) -> np.ndarray:
        """(D,) uint64 what `encode` gave with one share of the noise, drawn afresh."""
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
    """Deployed sum with all parties in one process: whole numbers and discrete noise."""

    parties: int  # w
    minimum: int  # m_min
    sampler: NoiseSampler = discrete_gaussian
    bare: frozenset[int] = frozenset()  # users or servers whose noise an attacker knows
    longest: int = 0  # steps of the longest vector that a user can send, where servers add noise
    _sum: np.ndarray = field(init=False)
    _added: np.ndarray = field(init=False)
    _opened: np.ndarray | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._sum = np.zeros(self.plan.dimension, np.uint64)
        self._added = np.zeros(self.parties, bool)

    @classmethod
    def of(
        cls,
        method: Submission,
        guarantee: Guarantee,
        sizes: Tensor,
        zeta: float = 0.0,
        **own: Any,
    ) -> Self:
        """An empty sum, encoded as `IntegerEncoder.of` says."""
        own |= {"parties": guarantee.users, "minimum": guarantee.min_survivors}
        made = super().of(method, guarantee, sizes, zeta, **own)
        if made.servers:
            made.longest = max(made.norm_bounds(method, sizes.unique()))
        return made

    def add(self, users: Tensor, submissions: Tensor) -> None:
        """Takes (u, D) float64 scaled submissions of these (u,) users.

        Raises:
            ValueError: a user that is none of the parties, or was added before: its records would
                move the sum by more than their sensitivity; or the sum was opened, and what it
                lacks would be seen without the servers' noise.
        """
        if self._opened is not None:
            raise ValueError("users must be added before the sum is opened")
        for user, submission in zip(users.tolist(), submissions.numpy(), strict=True):
            check.within(f"[0, {self.parties - 1}]", user=user)
            if self._added[user]:
                raise ValueError(f"user must be added once, got {user} again")
            self._added[user] = True
            self._sum += self.encode(submission)

    def total(self) -> Tensor:
        """(D,) float64 sum with the noise of those who are not bare; once more, it is the same.

        All noise is drawn here: what any submission may refuse comes before the first draw.

        Raises:
            ValueError: fewer users than are ever to be opened.
        """
        check.at_least(self.minimum, users=int(self._added.sum()))
        if self._opened is None:
            adders = range(self.servers) if self.servers else np.flatnonzero(self._added).tolist()
            opened = self._sum
            for adder in adders:
                if adder not in self.bare:
                    opened = self.noised(opened, self.sampler)
            self._opened = opened
        return self.decode(self._opened)

    def report(self) -> dict[str, Any]:
        """Facts of `IntegerEncoder`, and the bytes that each user would send."""
        sent = self._sum.nbytes if self.parties > 1 else 0
        if sent and self.servers:
            from train_distributed.secure_sum.reports import report_bytes

            sent = report_bytes(len(self._sum), self.longest)
        return super().report() | {"secure_sum": NO_PROTOCOL, "bytes_per_user": sent}


def add_chunk(summation: FloatSum | IntegerSum, method: Statistic, chunk: Chunk) -> None:
    """Adds the submissions of a chunk's users, in memory that their number does not change.

    Statistics are sums over rows, unless users are clipped: in floating point, where all noise is
    drawn at the end, those of all rows are taken at once.
    """
    if method.additive and isinstance(summation, FloatSum):
        summation.add(chunk.users, submissions(method, chunk.pooled(), summation.grid))
        return
    whole = method.grid_powers is None
    portions = [chunk] if whole else chunk.portions(max(1, BLOCK // method.dimension))
    for portion in portions:
        summation.add(portion.users, submissions(method, portion, summation.grid))
