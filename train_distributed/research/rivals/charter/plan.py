"""Rounds, noise and bits of a Charter run, fixed before any data is read.

Parameters of Sec. 4.3 of Salgia et al. 2025. Neighbours differ in one replaced record of a client.
"""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

import numpy as np

from pretrain import check
from train_distributed import accounting
from train_distributed.privacy.promise import honest_users
from train_distributed.research.rivals.charter.amplification import sampled_noise_multiplier
from train_distributed.research.rivals.charter.encoding import MessageEncoding, Quantised, Summed

CONSTANTS = ("tight", "paper")
DEVIATION = 1.0  # σ, sub-Gaussian, of gradients and of losses
FAILURE = 0.01  # δ_E, of the accuracy theorem
SMALLEST, LARGEST = 1e-100, 1e100  # float64 holds the products of two such numbers


@dataclass(frozen=True, kw_only=True)
class CharterTask:
    """Size of the problem, and the promise to be kept.

    Raises:
        ValueError: a number outside its range.
    """

    clients: int  # M
    rows: int  # N, of each client
    dimension: int  # d, numbers in one gradient; all one-vs-rest problems together
    epsilon: float  # inf: no noise
    delta: float
    diameter: float  # R, of the cube

    def __post_init__(self) -> None:
        check.at_least(1, clients=self.clients, rows=self.rows, dimension=self.dimension)
        check.within("(0, inf]", epsilon=self.epsilon)
        check.positive(diameter=self.diameter)
        check.within("(0, 1)", delta=self.delta)


@dataclass(frozen=True, kw_only=True)
class CharterPlan:
    """The schedule that clients and server follow."""

    task: CharterTask
    rounds: int  # K, cut rounds and iterates
    gradient_clip: float  # G0, joint over one-vs-rest problems
    loss_clip: float  # G1
    gradient_std: float  # s0, per number of a batch mean
    loss_std: float  # s1, per iterate of a mean loss
    honest: int | None  # H, clients sure to add their noise share under a secure sum; None: no sum
    bits: int | None = None  # J0 = J1 per number; None: the paper's

    @property
    def batch(self) -> int:
        """Nominal batch size b = ⌊N/3K⌋."""
        return self.task.rows // (3 * self.rounds)

    @property
    def learning_rows(self) -> int:
        """Two thirds n = ⌊2N/3⌋, at least 2K b: a batch is a share of at most 1/(2K)."""
        return 2 * self.task.rows // 3

    @property
    def fresh(self) -> tuple[int, ...]:
        """(K,) t_k >= 1, unused learning rows that round k takes.

        What b rows sampled from all n have new on average: n (1 - b/n)^k stay unused.
        """
        total, sizes = self.learning_rows, []
        kept = 1 - self.batch / total
        for k in range(1, self.rounds + 1):
            sizes.append(max(1, round(total * (1 - kept**k)) - sum(sizes)))
        return tuple(sizes)

    @property
    def rates(self) -> tuple[float, ...]:
        """(K,) q_k = t_k over the rows unused before round k."""
        unused = self.learning_rows - np.cumsum((0, *self.fresh[:-1]))
        return tuple(float(rate) for rate in np.array(self.fresh) / unused)

    @property
    def verification_rows(self) -> int:
        """The other rows, at least a third."""
        return self.task.rows - self.learning_rows

    @property
    def gradient_limit(self) -> float:
        """D0 = G0 + s0 √(32 log(40MKd/δ_E))."""
        task = self.task
        inside = 40 * task.clients * self.rounds * task.dimension / FAILURE
        return self.gradient_clip + self.gradient_std * math.sqrt(32 * math.log(inside))

    @property
    def loss_limit(self) -> float:
        """D1 = G1 + s1 √(2 log(16MK/δ_E))."""
        inside = 16 * self.task.clients * self.rounds / FAILURE
        return self.loss_clip + self.loss_std * math.sqrt(2 * math.log(inside))

    @property
    def gradient_bits(self) -> int:
        """J0 = ⌈log2(2 D0 N ε / (√d + σ ε √N))⌉, per number."""
        return self.bits or self._bits(self.gradient_limit, self.task.dimension)

    @property
    def loss_bits(self) -> int:
        """J1: J0's formula with D1 and R, per iterate."""
        return self.bits or self._bits(self.loss_limit, self.task.diameter**2)

    @property
    def payload_bits(self) -> int:
        """Bits that a client sends in all: K d J0 + K J1, or 64-bit words in a secure sum."""
        bits = self.gradient_encoding.bits, self.loss_encoding.bits
        return self.rounds * (self.task.dimension * bits[0] + bits[1])

    @cached_property
    def gradient_encoding(self) -> MessageEncoding:
        """Encoding of a round's message.

        Raises:
            ValueError: a sum that could wrap around.
        """
        if self.honest is None:
            return Quantised(self.gradient_limit, self.gradient_bits, self.gradient_std)
        moved = 2 * self.gradient_clip / self.batch
        return self._summed(self.gradient_std, moved, self.task.dimension, self.gradient_clip)

    @cached_property
    def loss_encoding(self) -> MessageEncoding:
        """Encoding of the verification message.

        Raises:
            ValueError: a sum that could wrap around.
        """
        if self.honest is None:
            return Quantised(self.loss_limit, self.loss_bits, self.loss_std)
        moved = self.loss_clip / self.verification_rows
        return self._summed(self.loss_std, moved, self.rounds, self.loss_clip)

    def _summed(self, std: float, moved: float, count: int, bound: float) -> MessageEncoding:
        assert self.honest is not None
        return Summed(std, moved, count, bound, self.task.clients, self.honest)

    def _bits(self, limit: float, squared_scale: float) -> int:
        rows = self.task.rows
        private = math.sqrt(squared_scale) / self.task.epsilon  # 0 without privacy
        values = 2 * limit * rows / (private + DEVIATION * rows**0.5)
        return math.ceil(math.log2(max(2.0, values)))


def make_plan(
    task: CharterTask,
    *,
    rounds: int,
    gradient_clip: float,
    loss_clip: float,
    constants: str = "tight",
    secure_sum: bool = False,
    honest_fraction: float = 0.5,
    bits: int | None = None,
) -> CharterPlan:
    """The noise that (ε, δ) needs, with all else that follows from it.

    Learning and verification use different records, so each alone spends (ε, δ).

    Args:
        task: the problem.
        rounds: K, gradients to ask for and iterates to verify.
        constants: "tight": the least noise among sound bounds (`amplification`, exact Gaussian
            curve); "paper": s0 and s1 of Sec. 4.3, for ε < 1.5/√K, and never less than the former.
        gradient_clip: G0, a known Lipschitz constant.
        loss_clip: G1, the largest loss.
        secure_sum: the server sees sums over clients only, and each adds a share of the noise.
        honest_fraction: t, of the clients under a secure sum.
        bits: J0 and J1, per number; None: the paper's, below which rounding adds to the noise.

    Raises:
        ValueError: unknown constants; more rounds than N/3 (the message says what they would take);
            ε beyond the range of the paper's proof; an honest fraction outside (0, 1]; a clip so
            small or large that float64 does not hold its square.
    """
    check.one_of(CONSTANTS, constants=constants)
    check_budget(task, rounds)
    check.within("[1, 32]", **check.drop_none(bits=bits))
    honest = None
    if secure_sum:
        check.within("(0, 1]", honest_fraction=honest_fraction)
        honest = honest_users(task.clients, Fraction(repr(float(honest_fraction))))
    draft = CharterPlan(
        task=task,
        rounds=rounds,
        gradient_clip=gradient_clip,
        loss_clip=loss_clip,
        gradient_std=0.0,
        loss_std=0.0,
        honest=honest,
        bits=bits,
    )
    check_scale(gradient_clip=draft.gradient_clip, loss_clip=draft.loss_clip)
    if math.isinf(task.epsilon):
        return draft
    stds = _paper_stds(draft) if constants == "paper" else _tight_stds(draft)
    return replace(draft, gradient_std=stds[0], loss_std=stds[1])


def check_scale(**lengths: float) -> None:
    """Refuses lengths whose squares float64 does not hold: they would be compared as 0 or infinity.

    Raises:
        ValueError: a value outside [1e-100, 1e100].
    """
    check.within(f"[{SMALLEST}, {LARGEST}]", **lengths)


def check_budget(task: CharterTask, rounds: int) -> None:
    """Refuses rounds that leave a batch empty; the error names the rows and bits they need."""
    check.at_least(1, rounds=rounds)
    if task.rows < 3 * rounds:
        bits = 64 * rounds * task.dimension
        raise ValueError(
            f"rounds must be <= rows/3 = {task.rows // 3}, got {rounds} for dimension "
            f"{task.dimension}: they would take {3 * rounds} rows and up to {bits} bits a client"
        )


def _tight_stds(plan: CharterPlan) -> tuple[float, float]:
    task = plan.task
    moved = 2 * plan.gradient_clip / plan.batch  # 6 K G0 / N
    multiplier = sampled_noise_multiplier(task.epsilon, task.delta, plan.rates)
    moved_loss = plan.loss_clip / plan.verification_rows  # losses are in [0, G1]
    verification = accounting.noise_multiplier(task.epsilon, task.delta, plan.rounds)
    return (
        moved * multiplier * rounding(plan.batch, task.dimension),
        moved_loss * verification * rounding(plan.verification_rows, 1),
    )


def rounding(rows: int, numbers: int) -> float:
    """Factor by which float64 may stretch what a record moves a sum of clipped vectors.

    A sum of n of norm G is exact to n 2⁻⁵³ of n G on either neighbour, whatever the order; a vector
    of m numbers is clipped to G but for m 2⁻⁵³ of it.
    """
    return 1 + 2.0**-30 + (rows**2 + numbers) * 2.0**-52


def _paper_stds(plan: CharterPlan) -> tuple[float, float]:
    """From s0² = 1080 G0² log²(2.5/δ) K/(N²ε²), s1² = 40 G1² log²(2.5K/δ) K/(N²ε²)."""
    task = plan.task
    if not task.epsilon < 1.5 / math.sqrt(plan.rounds):
        raise ValueError(
            f"epsilon must be < 1.5/sqrt(rounds) = {1.5 / math.sqrt(plan.rounds):.4g} for the "
            f"paper's constants, got {task.epsilon}"
        )
    scale = math.sqrt(plan.rounds) / (task.rows * task.epsilon)
    paper = (
        math.sqrt(1080) * plan.gradient_clip * math.log(2.5 / task.delta) * scale,
        math.sqrt(40) * plan.loss_clip * math.log(2.5 * plan.rounds / task.delta) * scale,
    )
    tight = _tight_stds(plan)
    if paper[0] < tight[0] or paper[1] < tight[1]:
        raise ValueError(
            f"constants must be 'tight' here, got 'paper': its noise {paper} is less than {tight}, "
            "the least that can be proven"
        )
    return paper
