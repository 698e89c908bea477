"""Sums that keep one promise together: of a centre first, of the method, of gradients after."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_distributed.one_shot.extra_sums import FIRST_SHARE, OWN_SHARE
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.statistic import Submission
from train_distributed.one_shot.summation import FloatSum, IntegerEncoder, IntegerSum
from train_distributed.privacy.composition import Cost, sum_up
from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.guarantee import ROUND_UP, Guarantee
from train_distributed.privacy.integer_gaussian import TAU
from train_distributed.privacy.promise import SERVERS, Privacy

Planned = tuple[Guarantee, FloatSum | IntegerEncoder]  # a sum, and what it is to keep
PlannedSums = list[tuple[Guarantee, FloatSum | IntegerSum]]  # all of a course, in its order


@dataclass(frozen=True)
class Round:
    """A round, made `times` times, each with this guarantee's share of the promise."""

    submission: Submission
    guarantee: Guarantee
    times: int = 1


def rounds_of(
    method: Method, sizes: Tensor, privacy: Privacy, min_survivors: int | None = None
) -> tuple[Round, ...]:
    """Rounds of a release in their order; their shares of μ² come to 1.

    Raises ValueError as `Guarantee.of` with (users,) sizes n_i and m_min = `min_survivors`.
    """
    rounds, statistic = method.rounds, method.statistic
    stages: list[tuple[Submission, float, int]] = [(statistic, 1.0, 1)]
    if rounds:
        stages = [(statistic, OWN_SHARE, 1), (method.gradient, (1 - OWN_SHARE) / rounds, rounds)]
    if method.first is not None:
        later = [(of, (1 - FIRST_SHARE) * share, times) for of, share, times in stages]
        stages = [(method.first, FIRST_SHARE, 1), *later]
    return tuple(
        Round(of, Guarantee.of(sizes, of, privacy, min_survivors, share=share), times)
        for of, share, times in stages
    )


def further_sums(method: Method) -> tuple[int, int]:
    """Count of the sums after the first one in a federation, and of the numbers in each.

    Raises ValueError for rounds of gradients, for which users are not asked.
    """
    if method.rounds:
        raise ValueError(f"rounds must be left out in a federation, got {method.rounds}")
    return (0, 0) if method.first is None else (1, method.statistic.dimension)


def zeta_of(rounds: Sequence[Round], sizes: Tensor) -> float:
    """ζ of all integer sums together, which each is to be planned with.

    As planned alone; more noise for what the others cost only lowers it.
    """
    if len(rounds) == 1:
        return 0.0  # its own is counted anyway
    alone = [
        (IntegerEncoder.of(each.submission, each.guarantee, sizes), each.times) for each in rounds
    ]
    return sum_up(zeta for own, times in alone for zeta in repeat(own.plan.zeta, times))


def sums_of(
    rounds: Sequence[Round],
    sizes: Tensor,
    *,
    discrete: bool,
    generator: torch.Generator | None,
    bare: frozenset[int] = frozenset(),
) -> PlannedSums:
    """Every sum of a release in its order, planned before any noise is drawn.

    Noise that is not `discrete`, and none, is simulated in floating point; `generator` None:
    seeded by the operating system. `bare` are users whose noise an attacker knows.
    """
    exact = discrete and rounds[0].guarantee.privacy.private
    zeta = zeta_of(rounds, sizes) if exact else 0.0
    if generator is None and not exact:
        generator = system_generator()
    sums = []
    for each in rounds:
        own, guarantee = each.submission, each.guarantee
        if generator is None or exact:
            summation = IntegerSum.of(own, guarantee, sizes, zeta, bare=bare)
        else:
            servers = SERVERS if guarantee.privacy.noise_by == "servers" else 0
            summation = FloatSum(own.dimension, guarantee.float_std, generator, bare, servers)
        sums += [(guarantee, replace(summation)) for _ in range(each.times)]
    check_zeta((own for _, own in sums if isinstance(own, IntegerEncoder)), zeta)
    return sums


def check_zeta(planned: Iterable[IntegerEncoder], zeta: float) -> None:
    """Raises ArithmeticError if several integer sums cost more ζ than they were planned with."""
    spent = [each.plan.zeta for each in planned]
    if len(spent) > 1 and sum_up(spent) > zeta:
        raise ArithmeticError(f"zeta of all sums must be <= {zeta}, got {sum_up(spent)}")


def rounds_report(sums: Sequence[Planned]) -> dict[str, Any]:
    """Facts about the number of sums and, where there are several, about each of them.

    Of the other facts, sensitivity and step are those of `main_sum`; ε and ζ of all together.
    """
    if len(sums) == 1:
        return {"rounds": 1}
    facts = [summation.report() for _, summation in sums]
    sent = [each["bytes_per_user"] for each in facts if "bytes_per_user" in each]
    planned = [each.plan for _, each in sums if isinstance(each, IntegerEncoder)]
    zeta = math.log10(sum_up(plan.zeta for plan in planned)) if planned else None
    report = {} if zeta is None else {"log10_zeta": zeta}
    if sent:
        report |= {"bytes_per_user": sum(sent), "bytes_per_round": sent}
    return report | {
        "rounds": len(sums),
        "share_per_round": [guarantee.share for guarantee, _ in sums],
        "sensitivity_per_round": [guarantee.sensitivity for guarantee, _ in sums],
        "local_noise_std_per_round": [summation.local_std for _, summation in sums],
    }


def main_sum(sums: Sequence[Planned]) -> Planned:
    """The sum with the largest share of the promise."""
    return max(sums, key=lambda each: each[0].share)


def promise_report(sums: Sequence[Planned]) -> dict[str, Any]:
    """Reports the promise of all sums, and the ε of the same noise under two other assumptions.

    Returns:
        `Guarantee.report` of `main_sum`, `zero_out_report` and, where users add the noise,
        `epsilon_if_all_others_collude`: two servers that collude see all that was sent.
    """
    guarantee, _ = main_sum(sums)
    report = guarantee.report()
    if guarantee.privacy.private and guarantee.privacy.noise_by == "users":
        epsilon = epsilon_if_all_others_collude(sums, guarantee.privacy.delta)
        shown = epsilon if math.isfinite(epsilon) else "not private"
        report |= {"epsilon_if_all_others_collude": shown}
    return report | zero_out_report(sums)


def epsilon_if_all_others_collude(sums: Iterable[Planned], delta: float) -> float:
    """ε of an honest user where all others show a server what they sent, so its own noise is left.

    The theorem of `privacy.integer_gaussian` with H = 1; a group of records that lies with several
    users moves their submissions by no more in all, so one user with all of it is the worst case.

    Returns:
        ε of all sums at δ, rounded up; infinity where one user's noise is too few steps for the
        theorem.
    """
    return Cost.of(_alone(*each) for each in sums).at(delta)


def _alone(guarantee: Guarantee, summation: FloatSum | IntegerEncoder) -> Cost:
    if isinstance(summation, IntegerEncoder):
        plan = summation.plan
        if plan.local_std <= TAU * np.max(plan.step):
            return Cost(squared_mu=math.inf)
        return replace(plan, honest=1).cost
    return _gaussian(guarantee.joint_sensitivity, summation.local_std)


def zero_out_report(sums: Sequence[Planned]) -> dict[str, float]:
    """Privacy loss of the same noise where rows are taken out instead of replaced.

    Of two neighbouring data sets one lacks the unit's rows; the sizes n_i, which are public, are
    the same of both, so nothing but the noised sum tells them apart ("zero-out", Kairouz et al.
    2021; Ponomareva et al. 2023, Sec. 2.1). It is what ε under adding or removing a record, as
    other tools state it, can be compared with: under that relation itself the published sizes
    differ, and no ε holds.

    Returns:
        `zero_out_epsilon` at the promised δ of all sums, rounded up as all here, and
        `zero_out_sensitivity` of one composition of `main_sum`; nothing where there is no noise.
    """
    guarantee, _ = main_sum(sums)
    if not guarantee.privacy.private:
        return {}
    epsilon = Cost.of(_removed(*each) for each in sums).at(guarantee.privacy.delta)
    return {"zero_out_sensitivity": guarantee.removal, "zero_out_epsilon": epsilon}


def _removed(guarantee: Guarantee, summation: FloatSum | IntegerEncoder) -> Cost:
    if isinstance(summation, IntegerEncoder):
        return replace(summation.plan, sensitivity=guarantee.joint_removal).cost
    return _gaussian(guarantee.joint_removal, summation.local_std * math.sqrt(guarantee.honest))


def _gaussian(moved: float, std: float) -> Cost:
    return Cost(squared_mu=(moved / std * ROUND_UP) ** 2)
