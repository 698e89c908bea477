"""Sums that keep one promise together, and each of them with its noise in it.

A centre is summed first, then the method's own statistic, then gradients. Here all parties are one
process, which sees every submission; `secure_sum` is for those who must not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from embed.store import BLOCK
from pretrain import check
from train_distributed.ledger.entry import gaussian_fields, simulated_fields
from train_distributed.one_shot.extra_sums import FIRST_SHARE, OWN_SHARE
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.statistic import Chunk, Statistic, submissions
from train_distributed.privacy.composition import Cost, sum_up
from train_distributed.privacy.guarantee import Guarantee, Submission
from train_distributed.privacy.mechanism import DiscreteGaussian, FloatGaussian, Mechanism
from train_distributed.privacy.promise import Privacy

NO_PROTOCOL = "none, one process added all submissions"


@dataclass(frozen=True)
class PlannedSum:
    """One sum: what is submitted, what it is to keep, and the noise that keeps it."""

    submission: Submission
    guarantee: Guarantee
    mechanism: Mechanism

    def bytes_per_user(self, sizes: Tensor) -> int:
        """Bytes that each of the users of these (users,) sizes would send; a single one none."""
        mechanism = self.mechanism
        if isinstance(mechanism, DiscreteGaussian):
            if self.guarantee.users == 1:
                return 0
            if mechanism.servers:
                from train_distributed.secure_sum.reports import report_bytes

                longest = max(mechanism.norm_bounds(self.submission, sizes.unique()))
                return report_bytes(mechanism.dimension, longest)
        return 8 * mechanism.dimension


@dataclass(frozen=True)
class Plan:
    """Every sum of a release, in order; their shares of μ² come to 1. No row was looked at."""

    sums: tuple[PlannedSum, ...]
    sizes: Tensor  # (users,) n_i

    @classmethod
    def of(
        cls,
        method: Method | Submission,
        sizes: Tensor,
        privacy: Privacy,
        min_survivors: int | None = None,
        *,
        discrete: bool = True,
        generator: torch.Generator | None = None,
    ) -> "Plan":
        """Plans the sums of a method, or a single one, for users of these (users,) sizes.

        Noise that is not `discrete`, and none, is simulated in floating point, with the
        `generator`; None: seeded by the operating system.

        Raises:
            ValueError: as `Guarantee.of` with m_min = `min_survivors`, and
                `DiscreteGaussian.calibrated`.
        """
        parts = [
            (own, Guarantee.of(sizes, own, privacy, min_survivors, share=share), times)
            for own, share, times in _stages(method)
        ]

        def planned(zeta: float) -> list[PlannedSum]:
            found = []
            for own, guarantee, times in parts:
                if discrete and privacy.private:
                    mechanism = DiscreteGaussian.calibrated(own, guarantee, sizes, zeta)
                else:
                    mechanism = FloatGaussian.simulated(own, guarantee, generator)
                found += times * [PlannedSum(own, guarantee, mechanism)]
            return found

        plan = cls(tuple(planned(0.0)), sizes)
        if len(plan.sums) == 1 or not plan.integers:
            return plan
        # ζ of all, as planned alone: more noise for what the others cost only lowers it
        zeta = sum_up(each.zeta for each in plan.integers)
        plan = cls(tuple(planned(zeta)), sizes)
        if (spent := sum_up(each.zeta for each in plan.integers)) > zeta:
            raise ArithmeticError(f"zeta of all sums must be <= {zeta}, got {spent}")
        return plan

    @property
    def integers(self) -> list[DiscreteGaussian]:
        """The mechanisms of the sums; none where they are simulated."""
        found = (each.mechanism for each in self.sums)
        return [each for each in found if isinstance(each, DiscreteGaussian)]

    @property
    def main(self) -> PlannedSum:
        """The sum with the largest share of the promise."""
        return max(self.sums, key=lambda each: each.guarantee.share)

    def spends(self, done: int = 0) -> dict[str, Any]:
        """Fields of a ledger's entry that covers all sums but so many that were made before."""
        if self.integers:
            return gaussian_fields(*self.integers[done:])
        return simulated_fields(self.sums[0].guarantee)

    def epsilon(self, times: int = 1) -> float:
        """ε of all sums, made so many times, at the promised δ, rounded up."""
        return self._at(each.mechanism.cost() for each in times * self.sums)

    def epsilon_if_all_others_collude(self, times: int = 1) -> float:
        """ε of an honest user where all others show a server what they sent; see `cost_alone`."""
        return self._at(each.mechanism.cost_alone() for each in times * self.sums)

    def zero_out_epsilon(self) -> float:
        """ε of the same noise where rows are taken out instead of replaced.

        Of two neighbouring data sets one lacks the unit's rows; the sizes n_i, which are public,
        are the same of both, so nothing but the noised sum tells them apart ("zero-out", Kairouz et
        al. 2021; Ponomareva et al. 2023, Sec. 2.1). It is what ε under adding or removing a record,
        as other tools state it, can be compared with: under that relation itself the published
        sizes differ, and no ε holds.
        """
        return self._at(
            each.mechanism.cost_of_removal(each.guarantee.joint_removal) for each in self.sums
        )

    def _at(self, costs: Any) -> float:
        return Cost.of(costs).at(self.main.guarantee.privacy.delta)

    def report(self) -> dict[str, Any]:
        """Promise and noise of all sums, JSON-ready.

        Sensitivity, step and noise are those of `main`; ε and ζ of all together, under two other
        assumptions as well. Two servers that collude see all that was sent: no ε is left then.
        """
        guarantee, mechanism = self.main.guarantee, self.main.mechanism
        report = guarantee.report()
        if guarantee.privacy.private:
            if guarantee.privacy.noise_by == "users":
                alone = self.epsilon_if_all_others_collude()
                shown = alone if math.isfinite(alone) else "not private"
                report |= {"epsilon_if_all_others_collude": shown}
            report |= {"zero_out_sensitivity": guarantee.removal}
            report |= {"zero_out_epsilon": self.zero_out_epsilon()}
        report |= mechanism.report() | {"rounds": len(self.sums)}
        if len(self.sums) == 1:
            return report
        if self.integers:
            report["log10_zeta"] = math.log10(sum_up(each.zeta for each in self.integers))
        guarantees = [each.guarantee for each in self.sums]
        return report | {
            "share_per_round": [each.share for each in guarantees],
            "sensitivity_per_round": [each.sensitivity for each in guarantees],
            "local_noise_std_per_round": [each.mechanism.local_std for each in self.sums],
        }

    def report_sent(self) -> dict[str, Any]:
        """Bytes that users would send, for reports of runs where one process adds all vectors."""
        sent = [each.bytes_per_user(self.sizes) for each in self.sums]
        report: dict[str, Any] = {"secure_sum": NO_PROTOCOL} if self.integers else {}
        report |= {"bytes_per_user": sum(sent)}
        return report | ({"bytes_per_round": sent} if len(sent) > 1 else {})


def _stages(method: Method | Submission) -> Sequence[tuple[Submission, float, int]]:
    """Stages of a release in order: (submission, share of μ², number of sums)."""
    if isinstance(method, Submission):
        return [(method, 1.0, 1)]
    rounds, statistic = method.rounds, method.statistic
    stages: list[tuple[Submission, float, int]] = [(statistic, 1.0, 1)]
    if rounds:
        stages = [(statistic, OWN_SHARE, 1), (method.gradient, (1 - OWN_SHARE) / rounds, rounds)]
    if method.first is not None:
        later = [(of, (1 - FIRST_SHARE) * share, times) for of, share, times in stages]
        stages = [(method.first, FIRST_SHARE, 1), *later]
    return stages


def second_dimension(method: Method) -> int:
    """Numbers in the second sum of a federation; 0: there is one sum.

    Raises ValueError for rounds of gradients, for which users are not asked.
    """
    if method.rounds:
        raise ValueError(f"rounds must be left out in a federation, got {method.rounds}")
    return 0 if method.first is None else method.statistic.dimension


@dataclass
class RunningSum:
    """A planned sum with all parties in one process."""

    planned: PlannedSum
    bare: frozenset[int] = frozenset()  # users or servers whose noise an attacker knows: not added
    _sum: Any = field(init=False)
    _opened: Any = field(init=False, default=None)
    _added: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        nothing = torch.zeros(0, self.planned.mechanism.dimension, dtype=torch.float64)
        self._sum = self.planned.mechanism.summed(nothing)

    def add(self, users: Tensor, submissions: Tensor) -> None:
        """Takes (u, D) float64 scaled submissions of these (u,) users, or (1, D) their sum.

        Raises:
            ValueError: a user that is none of the parties, or was added before: its records would
                move the sum by more than their sensitivity; or the sum was opened, and what it
                lacks would be seen without the servers' noise.
        """
        if self._opened is not None:
            raise ValueError("users must be added before the sum is opened")
        listed, last = users.tolist(), self.planned.guarantee.users - 1
        for user in (min(listed), max(listed)):
            check.within(f"[0, {last}]", user=user)
        for user in listed:
            if user in self._added:
                raise ValueError(f"user must be added once, got {user} again")
            self._added.add(user)
        self._sum += self.planned.mechanism.summed(submissions)

    def add_chunk(self, statistic: Statistic, chunk: Chunk) -> None:
        """Adds the submissions of a chunk's users, in memory that their number does not change.

        Statistics are sums over rows, unless users are clipped: in floating point, where all noise
        is drawn at the end, those of all rows are taken at once.
        """
        mechanism = self.planned.mechanism
        if statistic.additive and isinstance(mechanism, FloatGaussian):
            self.add(chunk.users, submissions(statistic, chunk.pooled(), mechanism.grid))
            return
        whole = statistic.grid_powers is None
        portions = [chunk] if whole else chunk.portions(max(1, BLOCK // statistic.dimension))
        for portion in portions:
            self.add(portion.users, submissions(statistic, portion, mechanism.grid))

    def total(self) -> Tensor:
        """(D,) float64 sum with the noise of those who are not bare; once more, it is the same.

        All noise is drawn here: what any submission may refuse comes before the first draw.

        Raises:
            ValueError: fewer users than are ever to be opened.
        """
        planned = self.planned
        check.at_least(planned.guarantee.min_survivors, users=len(self._added))
        if self._opened is None:
            servers = planned.mechanism.servers
            adders = set(range(servers)) if servers else self._added
            self._opened = planned.mechanism.noised(self._sum, len(adders - self.bare))
        return planned.mechanism.decode(self._opened)
