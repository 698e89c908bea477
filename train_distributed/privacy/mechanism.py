"""The mechanism of one sum: its integers, its noise, and what both cost.

Below: (ε, δ) of a sum of rounded vectors and discrete Gaussian noise; nothing is approximated away.

Setting. User i sends z_i = round(v_i / g) + N_i, N_i ~ N_Z(0, (σ/g_c)²) independent in every
coordinate c. Neighbouring inputs (replace one record) move Σ v_i by at most Δ in L2 and change the
vectors of at most A users. g_c is the real size of one integer step of coordinate c, σ the real
standard deviation of one user's noise. At least H users are honest. Write s_c = σ/g_c,
q(s) = exp(-2π²s²), θ(s) = 2 Σ_{m≥1} q(s)^(m²), τ = 4 steps, and

    ζ = Σ_c [ 5 Σ_{k=1}^{H-1} exp(-2π² s_c² k/(k+1)) + 5 exp(-2π² τ²) ].

**Theorem.** If the continuous Gaussian mechanism with standard deviation sqrt(Hσ² - τ² max g²) and
sensitivity Δ + A sqrt(Σ_c g_c²) is (ε, δ), the integer sum is (ε + 2ζ, e^ζ δ).

**Proof.** Poisson summation: Σ_{x∈Z} exp(-(x-a)²/(2s²)) = s sqrt(2π) (1 + ϑ), |ϑ| ≤ θ(s), and
ϑ = θ(s) for a = 0. Let s ≥ 1/2 below, so q(s) < 0.0072 and θ(s) ≤ 2q/(1 - q³).

1. *Two discrete Gaussians.* Completing the square with 1/ρ² = 1/s² + 1/t²,
   P[N_Z(0,s²) + N_Z(0,t²) = z] / P[N_Z(0,s²+t²) = z]
   = (1 + ϑ)(1 + θ(√(s²+t²))) / ((1 + θ(s))(1 + θ(t))), |ϑ| ≤ θ(ρ). It is at most 1 + θ(ρ), since
   θ falls; and its logarithm is at least ln(1 - θ(ρ)) - θ(s) - θ(t). With s² = ρ²/a and
   t² = ρ²/(1-a), q(ρ)^(1/a) ≤ a q(ρ) because ln(1/q) ≥ 1, so θ(s) + θ(t) ≤ 2 q(ρ)/(1-q³). Either
   way |ln ratio| ≤ 5 q(ρ) (Kairouz, Liu, Steinke 2021, Thm 9).
2. *H of them.* Adding one at a time, ρ² = s² k/(k+1), and by post-processing the bounds add up:
   the sum of H is within e^{±5 Σ_k q(s sqrt(k/(k+1)))} of N_Z(0, H s²), point by point.
3. *One discrete Gaussian.* Let R(x) = z with probability ∝ exp(-(z-x)²/(2τ²)): a randomised
   rounding with R(x + j) = R(x) + j for integers j. For continuous X ~ N(0, S² - τ²), S² = H s²,
   P[R(X) = z] = ∫ φ(x; S²-τ²) φ(z-x; τ²)/(1 + ϑ) dx, so it is within 1/(1 ± θ(τ)) of φ(z; S²), and
   P[N_Z(0,S²) = z] = φ(z; S²)/(1 + θ(S)). Hence |ln ratio| ≤ -ln(1-θ(τ)) + θ(S) ≤ 5 q(τ).
4. *The mechanism.* Coordinates are independent: with P the law of the integer noise and Q that of
   R(X), |ln P/Q| ≤ ζ on Z^d. On neighbours the integer inputs f, f' differ by u with
   |u_c| ≤ |Δv_c|/g_c + A_c, A_c ≤ A, so |g·u| ≤ Δ + A sqrt(Σ g_c²) by the triangle inequality.
   R shifts with integers, so f + R(X) = R(f + X) is post-processing of a Gaussian mechanism whose
   standard deviation in coordinate c is sqrt(H s_c² - τ²) g_c ≥ sqrt(Hσ² - τ² max g²). Then
   P(f + S) ≤ e^ζ Q(f + S) ≤ e^ζ (e^ε Q(f' + S) + δ) ≤ e^{ε+2ζ} P(f' + S) + e^ζ δ. Noise of further
   users is independent of the data, and so post-processing. ∎

**Several sums, one after another.** Sum t may be of vectors that were chosen with all earlier sums
in sight: adaptively. If its continuous mechanism has μ_t = sensitivity over standard deviation, and
its ζ is ζ_t, all integer sums together are (ε + 2Z, e^Z δ) with Z = Σ ζ_t, wherever the continuous
Gaussian mechanism of μ² = Σ μ_t² is (ε, δ).

**Proof.** Given any earlier sums h, step 4 holds for sum t: on either neighbour its law P_t(· | h)
is within e^{±ζ_t}, point by point, of the law Q_t(· | h) of f_t(h) + R(X). So the probability
Π P_t(z_t | z_1 … z_{t-1}) of all sums is within e^{±Z} of Π Q_t. The latter is an adaptive
composition of Gaussian mechanisms of μ_t with post-processing, and so of μ (Cor. 3.3 of Dong, Roth
and Su 2022). The last line of step 4 follows with Z in place of ζ. ∎

The charge of half a step per rounding is exact because the step is a power of two: dividing by it
rounds nothing. Rounding towards zero instead is charged alike: of two numbers of one sign it moves
the difference by less than a step, of two signs it brings them nearer. Rows rounded towards zero
before they are summed (by `one_shot.statistic`) keep their norm bound: then the integers are the
statistic, Δ is theirs, and A = 0. Steps that differ by coordinate are those of scaled whole
numbers: where these are rounded (by `one_shot.user_clip`), it is before they are scaled.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from pretrain import check
from train_distributed import accounting
from train_distributed.privacy.composition import COST_ROUND_UP, Cost
from train_distributed.privacy.discrete_gaussian import (
    MOST_STD,
    NoiseSampler,
    add_noise,
    discrete_gaussian,
)
from train_distributed.privacy.fixed_point import FixedPoint, is_power_of_two
from train_distributed.privacy.float_noise import gaussian, system_generator
from train_distributed.privacy.guarantee import ROUND_UP, Guarantee, Submission
from train_distributed.privacy.promise import SERVERS

TAU = 4.0  # τ, steps
STEPS_PER_STD = 2.0**10  # default step: σ is at least so many steps,
STEPS_PER_SENSITIVITY = 2.0**14  # and rounding at most 1/2^14 of the sensitivity
EXACT_TERMS = 10**6  # beyond, the last term replaces all that follow, which are smaller
GRID_EXPONENTS = range(20, 7, -1)  # size: grids that are tried, the finest first
MOST_NORM = 2.0**31  # guard: of a vector in steps, of which `proofs` can prove the length
EXACT_STEPS = 2.0**50  # guard: float64 sums, scaled and unscaled, of fewer steps are whole


@dataclass(frozen=True, kw_only=True)
class Mechanism(ABC):
    """Noise of one sum of scaled submissions, in shares: what it costs, and how it is added."""

    dimension: int  # d
    sensitivity: float  # Δ: joint L2 of the submitted vector, all heads together
    local_std: float  # σ of one share of the noise, in the unit of the sensitivity
    honest: int  # H, shares that are certain to be there and known to nobody else
    servers: int = 0  # that add a share each; 0: every user does
    grid: float | None = None  # rows must be multiples of it; None: any rows

    def noise_std(self, users: int) -> float:
        """Standard deviation of the noise in a scaled sum over so many users."""
        return self.local_std * math.sqrt(self.servers or users)

    @abstractmethod
    def cost(self) -> Cost:
        """Privacy cost that it adds to other sums over the same rows."""

    def cost_alone(self) -> Cost:
        """Cost for an honest user where all others show a server what they sent: H = 1.

        A group of records that lies with several users moves their submissions by no more in all,
        so one user with all of it is the worst case.
        """
        return replace(self, honest=1).cost()

    def cost_of_removal(self, moved: float) -> Cost:
        """Cost where neighbours move the sum by so much instead of the sensitivity."""
        return replace(self, sensitivity=moved).cost()

    @abstractmethod
    def summed(self, submissions: Tensor) -> Any:
        """Encoded sum of (u, d) float64 scaled submissions, without noise."""

    @abstractmethod
    def noised(self, total: Any, shares: int = 1) -> Any:
        """An encoded vector, or a sum of such, with so many shares of the noise, drawn afresh."""

    @abstractmethod
    def decode(self, total: Any) -> Tensor:
        """Encoded sum to (d,) float64 scaled."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """The kind of noise and its size; nothing about a sum."""


@dataclass(frozen=True, kw_only=True)
class FloatGaussian(Mechanism):
    """A simulation in floating point: all noise is drawn as the one Gaussian it adds up to.

    m independent draws of N(0, s²) sum to N(0, m s²), so this is the same distribution. Marked
    unsuitable for release, as all floating-point noise is.
    """

    generator: torch.Generator | None = None  # None: seeded by the operating system

    @classmethod
    def simulated(
        cls, submission: Submission, guarantee: Guarantee, generator: torch.Generator | None = None
    ) -> Self:
        """Noise of a guarantee, σ Δ / √(H share) a share (Sec. 5.1); none without a promise.

        The H certain shares alone suffice. What is deployed is a little more: `calibrated` pays for
        rounding and discreteness too.
        """
        certain = math.sqrt(guarantee.honest * guarantee.share)
        return cls(
            dimension=submission.dimension,
            sensitivity=guarantee.joint_sensitivity,
            local_std=guarantee.noise_multiplier * guarantee.sensitivity / certain * ROUND_UP,
            honest=guarantee.honest,
            servers=SERVERS if guarantee.privacy.noise_by == "servers" else 0,
            generator=generator,
        )

    def cost(self) -> Cost:
        """Cost of a Gaussian of the H certain shares."""
        std = self.local_std * math.sqrt(self.honest)
        return Cost(squared_mu=(self.sensitivity / std * ROUND_UP) ** 2)

    def summed(self, submissions: Tensor) -> Tensor:
        """(d,) float64 sum."""
        return submissions.sum(0)

    def noised(self, total: Tensor, shares: int = 1) -> Tensor:
        """(d,) float64 sum with one draw that is as wide as so many shares."""
        std = self.local_std * math.sqrt(shares)
        if not std:
            return total
        return total + gaussian(self.dimension, std, self.generator or system_generator())

    def decode(self, total: Tensor) -> Tensor:
        """The sum as it is."""
        return total

    def report(self) -> dict[str, Any]:
        """The kind of noise and its size."""
        kind = "float" if self.local_std else "none"
        return {"noise": kind, "local_noise_std": self.local_std}


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian(Mechanism):
    """Whole numbers modulo 2^64 and discrete Gaussian noise: what is deployed.

    Replace-one-record neighbours unless Δ says otherwise. `fixed_point` says why no sum wraps
    around.

    Raises:
        ValueError: a field out of range, noise of less than one step, or of more steps than the
            sampler draws, or a sum of all parties that could wrap around.
    """

    step: float | NDArray[np.float64]  # g: real size of a step; (d,) if it differs by coordinate
    rounded_users: int = 1  # A, users whose vector a neighbour changes; 0: rows were rounded
    bound: float = 0.0  # largest |entry| of a vector before noise, in the unit of the sensitivity
    parties: int = 1  # w, the most vectors, or noises, that are ever added
    sampler: NoiseSampler = discrete_gaussian

    def __post_init__(self) -> None:
        check.positive(local_std=self.local_std, sensitivity=self.sensitivity)
        check.at_least(1, honest=self.honest, dimension=self.dimension)
        check.at_least(0, rounded_users=self.rounded_users)
        steps = _steps(self.step, self.dimension)
        largest = float(steps.max())
        if self.rounded_users and np.ndim(self.step) == 0 and not is_power_of_two(float(steps[0])):
            raise ValueError(
                f"step must be a power of two where vectors are rounded, got {self.step}"
            )
        if self.local_std < largest or not self._certain(self.honest):
            raise ValueError(
                f"local_std must be >= the step and > {TAU:g} steps / sqrt(honest), "
                f"got {self.local_std} for a step of {largest} and honest={self.honest}"
            )
        if (most := float(np.max(self.stds_in_steps))) > MOST_STD:
            raise ValueError(
                "local_std must be <= 2^53 steps, the most that is drawn (a larger epsilon or "
                f"fewer rows a user need less), got {most:.4g} steps"
            )
        _ = self.code

    @classmethod
    def calibrated(
        cls, submission: Submission, guarantee: Guarantee, sizes: Tensor, zeta: float = 0.0
    ) -> Self:
        """The grid, step and noise with which submissions of users of these sizes keep a promise.

        `zeta` is that of all sums which share the promise; see `for_promise`.

        Trained weights are rounded to a step that `for_promise` chooses and charges. Statistics of
        rows on a grid are whole steps already; the finest grid is taken whose sum cannot wrap
        around, and where float64 holds every user's own sum exactly: rounding it would move it by
        more than its sensitivity says. Those that a users' clip makes shorter are rounded to whole
        steps again, which is charged; and so are all where servers add the noise, since what a user
        proves of its vector's length needs one step for all of it.

        Raises:
            ValueError: the sum could wrap around, or one user's would not be exact.
        """
        bound, users = submission.entry_bound(int(sizes.max())), guarantee.users
        servers = SERVERS if guarantee.privacy.noise_by == "servers" else 0
        rounded = servers or not submission.additive
        planned = partial(
            cls.for_promise,
            guarantee.privacy.epsilon,
            guarantee.privacy.delta,
            sensitivity=guarantee.joint_sensitivity,
            honest=guarantee.honest,
            dimension=submission.dimension,
            rounded_users=guarantee.touched_users if rounded else 0,
            share=guarantee.share,
            zeta=zeta,
            bound=bound,
            parties=max(users, servers),
            servers=servers,
        )
        least = _provable_step(submission, sizes) if servers else 0.0
        if submission.grid_powers is None:
            return planned(least_step=least)
        for exponent in GRID_EXPONENTS:
            grid = 2.0**-exponent
            steps = (grid ** submission.grid_powers.double() * submission.scale).numpy()
            largest = bound / float(np.min(steps))
            try:
                if largest > EXACT_STEPS:
                    raise ValueError(
                        f"rows of a user must sum to at most 2^50 steps, got {largest:.4g}"
                    )
                return planned(step=None if servers else steps, least_step=least, grid=grid)
            except ValueError:
                if exponent == GRID_EXPONENTS[-1]:
                    raise
        raise AssertionError("unreachable: the last grid returns or raises")

    @classmethod
    def for_promise(
        cls,
        epsilon: float,
        delta: float,
        *,
        sensitivity: float,
        honest: int,
        dimension: int,
        rounded_users: int = 1,
        step: float | NDArray[np.float64] | None = None,
        least_step: float = 0.0,
        share: float = 1.0,
        zeta: float = 0.0,
        **integers: Any,
    ) -> Self:
        """The smallest noise, and a step, with which the integer sum is (epsilon, delta).

        Sums whose shares come to 1 are (epsilon, delta) together if each is planned with a `zeta`
        that is at least the ζ of all of them.

        Args:
            epsilon: > 0 and finite.
            delta: in (0, 1).
            sensitivity: Δ, joint L2 of the submitted vector.
            honest: H.
            dimension: d.
            rounded_users: A; 0 where rows were rounded towards zero first.
            step: g, one number or (d,); default `default_step` at the noise that a real-valued
                release would need.
            least_step: the step where the default one is finer.
            share: of the promise's μ² that this sum may spend, in (0, 1].
            zeta: Z of all sums that share the promise; this one's own ζ if that is more.
            integers: further fields.

        Raises:
            ValueError: a target that no amount of noise at this step meets, or a share out of
                range.
        """
        check.within("(0, 1]", share=share)
        local = accounting.noise_multiplier(epsilon, delta) * sensitivity
        local /= math.sqrt(honest * share)
        if step is None:
            step = default_step(local, sensitivity, dimension, rounded_users=max(1, rounded_users))
            step = max(step, least_step)
        steps = _steps(step, dimension)
        # ζ falls with the noise, and the noise planned below is at least `local`.
        zeta = max(zeta, math.exp(_log_zeta(local, step, honest, dimension)))
        if 2 * zeta >= epsilon:
            raise ValueError(f"step must leave 2 zeta < epsilon={epsilon}, got zeta={zeta:.3g}")
        multiplier = accounting.noise_multiplier(epsilon - 2 * zeta, math.exp(-zeta) * delta)
        std = multiplier * (sensitivity + rounded_users * _rounding(steps, dimension))
        std /= math.sqrt(share)
        std = math.hypot(std, TAU * float(steps.max())) * COST_ROUND_UP
        return cls(
            local_std=std / math.sqrt(honest),
            step=step,
            sensitivity=sensitivity,
            honest=honest,
            dimension=dimension,
            rounded_users=rounded_users,
            **integers,
        )

    @cached_property
    def code(self) -> FixedPoint:
        """The map of whole steps to integers modulo 2^64.

        Where servers add the noise, rows on a grid are rounded to another step, by half of it.
        """
        finest = float(np.min(self.step))
        rounding = 0.5 if self.servers and self.grid is not None else 0.0
        most = self.bound / finest + rounding
        return FixedPoint(1.0, most, self.parties, self.local_std / finest)

    def encode(self, submission: NDArray[np.float64]) -> NDArray[np.uint64]:
        """(d,) scaled float64 to (d,) uint64, without noise.

        Raises:
            ValueError: an entry beyond the bound or not finite; nothing is ever clipped.
        """
        steps = submission / self.step
        return self.code.encode(steps if self.grid is None else np.rint(steps))

    def summed(self, submissions: Tensor) -> NDArray[np.uint64]:
        """(d,) uint64 sum of what `encode` gives of each."""
        total = np.zeros(self.dimension, np.uint64)
        for submission in submissions.numpy():
            total += self.encode(submission)
        return total

    def noised(self, total: NDArray[np.uint64], shares: int = 1) -> NDArray[np.uint64]:
        """(d,) uint64 with so many shares of the noise."""
        for _ in range(shares):
            total = add_noise(total, self.stds_in_steps, self.sampler)
        return total

    def decode(self, total: NDArray[np.uint64]) -> Tensor:
        """(d,) uint64 sum to (d,) float64 scaled."""
        return torch.from_numpy(self.code.decode(total) * self.step)

    def norm_bounds(self, submission: Submission, sizes: Tensor) -> list[int]:
        """Length in steps that no encoded submission of users of these (users,) sizes exceeds."""
        rounded = math.sqrt(self.dimension) / 2
        longest = submission.norm_bounds(sizes) * ROUND_UP / float(self.step)
        return [math.floor(each + rounded) + 1 for each in longest.tolist()]

    def report(self) -> dict[str, Any]:
        """The kind of noise and its size, the step, and what discreteness costs."""
        return {
            "noise": "discrete",
            "local_noise_std": self.local_std,
            "step": float(np.max(self.step)),
            "log10_zeta": self.log10_zeta,
        }

    def cost(self) -> Cost:
        """Cost of the theorem's continuous mechanism, and ζ."""
        return Cost(squared_mu=(COST_ROUND_UP / self.noise_multiplier) ** 2, zeta=self.zeta)

    def cost_alone(self) -> Cost:
        """Cost of one user's share of noise; infinite where it is too few steps for the theorem."""
        return super().cost_alone() if self._certain(1) else Cost(squared_mu=math.inf)

    def _certain(self, shares: int) -> bool:
        """Whether so many shares are wider than τ: what a continuous Gaussian is rounded by."""
        return shares * self.local_std**2 > (TAU * float(np.max(self.step))) ** 2

    @property
    def log_zeta(self) -> float:
        """Natural logarithm of ζ, which is often below the smallest double."""
        return _log_zeta(self.local_std, self.step, self.honest, self.dimension)

    @property
    def log10_zeta(self) -> float:
        """log10 ζ, the number to report."""
        return self.log_zeta / math.log(10)

    @property
    def zeta(self) -> float:
        """ζ; 0 where it is below the smallest double."""
        return math.exp(self.log_zeta)

    @property
    def certain_std(self) -> float:
        """Standard deviation sqrt(H σ² - τ² max g²) of the theorem's continuous mechanism."""
        largest = float(_steps(self.step, self.dimension).max())
        return math.sqrt(self.honest * self.local_std**2 - (TAU * largest) ** 2)

    @property
    def charged_sensitivity(self) -> float:
        """Sensitivity Δ + A sqrt(Σ g_c²) of the theorem's continuous mechanism."""
        steps = _steps(self.step, self.dimension)
        return self.sensitivity + self.rounded_users * _rounding(steps, self.dimension)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation over sensitivity of the theorem's continuous mechanism."""
        return self.certain_std / self.charged_sensitivity

    @property
    def stds_in_steps(self) -> float | NDArray[np.float64]:
        """Standard deviations of each share of the noise in steps: σ/g."""
        return self.local_std / self.step

    def delta(self, epsilon: float) -> float:
        """δ(ε) = e^ζ δ_continuous(ε - 2ζ)."""
        zeta = self.zeta
        if epsilon < 2 * zeta:
            return 1.0
        return min(
            1.0, math.exp(zeta) * accounting.delta(epsilon - 2 * zeta, self.noise_multiplier)
        )

    def epsilon(self, delta: float) -> float:
        """ε(δ) = ε_continuous(e^-ζ δ) + 2ζ."""
        zeta = self.zeta
        return accounting.epsilon(math.exp(-zeta) * delta, self.noise_multiplier) + 2 * zeta


def _provable_step(submission: Submission, sizes: Tensor) -> float:
    """The finest step, one for all entries, at which every length can be proved."""
    rounded = math.sqrt(submission.dimension) + 2
    least = submission.norm_bounds(sizes).max().item() * ROUND_UP / (MOST_NORM - rounded)
    return 2.0 ** math.ceil(math.log2(least))


def default_step(
    local_std: float, sensitivity: float, dimension: int, *, rounded_users: int = 1
) -> float:
    """min(σ/2^10, Δ/(2^14 A sqrt(d))), rounded down to a power of two.

    Rounding then adds at most 2^-14 to the sensitivity and τ at most 2^-17 to the noise.
    """
    finest = min(
        local_std / STEPS_PER_STD,
        sensitivity / (STEPS_PER_SENSITIVITY * rounded_users * math.sqrt(dimension)),
    )
    return 2.0 ** math.floor(math.log2(finest))


def _steps(step: ArrayLike, dimension: int) -> NDArray[np.float64]:
    steps = np.atleast_1d(np.asarray(step, np.float64))
    if steps.shape not in {(1,), (dimension,)} or not np.all(np.isfinite(steps) & (steps > 0)):
        raise ValueError(
            f"step must be one finite number > 0 or ({dimension},) of them, "
            f"got shape {steps.shape} with minimum {steps.min(initial=math.inf)}"
        )
    return steps


def _rounding(steps: NDArray[np.float64], dimension: int) -> float:
    """sqrt(Σ_c g_c²)."""
    return float(steps[0]) * math.sqrt(dimension) if len(steps) == 1 else math.hypot(*steps)


def _log_zeta(local_std: float, step: ArrayLike, honest: int, dimension: int) -> float:
    """Natural logarithm of ζ, every coordinate counted as the one with the coarsest step."""
    std = local_std / float(np.max(step))  # in steps
    terms = min(honest - 1, EXACT_TERMS)
    k = np.arange(1, terms + 1)
    weights = np.ones(terms)
    weights[-1:] += honest - 1 - terms
    exponents = np.append(-2 * (math.pi * std) ** 2 * k / (k + 1), -2 * (math.pi * TAU) ** 2)
    logs = exponents + np.log(np.append(weights, 1.0))
    return math.log(5 * dimension) + float(np.logaddexp.reduce(logs))
