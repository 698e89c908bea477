"""Gradient perturbation after Jayaraman, Wang, Evans and Gu (NeurIPS 2018), Algorithm 2.

M rounds of full-batch gradient descent; every round one secure sum adds up all users' gradients,
with each user's share of the noise in it. One record moves a round's sum by 2L; the M rounds are
Gaussian mechanisms chosen adaptively, together one of sensitivity 2L√M (Dong, Roth and Su 2022),
instead of the published zero-concentrated bound, which is looser.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from heads import Head, SoftmaxHead
from pretrain import check
from train_distributed.ledger.entry import gaussian_fields, simulated_fields
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import FaultInjection
from train_distributed.one_shot.statistic import Statistic
from train_distributed.one_shot.summation import FloatSum, IntegerSum
from train_distributed.one_shot.users import Chunk
from train_distributed.privacy.guarantee import Guarantee
from train_distributed.privacy.integer_gaussian import DiscreteGaussianMechanism, calibrate
from train_distributed.privacy.promise import SERVERS
from train_distributed.research.baselines.task import Task
from train_distributed.research.options import GradientOptions

ROUNDING = 1 + 1e-12  # of one row's gradient in float64


@dataclass(frozen=True)
class GradientSum(Statistic):
    """Σ ∇loss at the current weights, of every user: one round."""

    head: Head
    weights: Tensor  # (d, K) float64
    rounds: int  # M, all of which the promise covers

    def validate(self) -> None:
        """Raises ValueError for a setting out of range."""
        check.at_least(1, rounds=self.rounds)

    @property
    def dimension(self) -> int:
        """Numbers in one round's submission, d K."""
        return self.weights.numel()

    @property
    def compositions(self) -> int:
        """Over all rounds."""
        return self.rounds * self.head.compositions

    def record_sensitivity(self, sizes: Tensor) -> float:
        """2L: two gradients of norm at most L, and what a float64 sum of n of them may be off by.

        A sum of n gradients of norm L is exact to n 2⁻⁵³ of n L, whatever the order, on either of
        two neighbours.
        """
        n = int(sizes.max())
        return 2 * self.head.lipschitz * (ROUNDING + n**2 * 2.0**-52)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """L less: one gradient instead of two."""
        return self.record_sensitivity(sizes) - self.head.lipschitz

    def entry_bound(self, n: int) -> float:
        """n gradients of norm at most L, and what their float64 sum may be off by."""
        return n * self.head.lipschitz * (ROUNDING + n * 2.0**-52)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64."""
        x = chunk.x.double()
        residual = self.head.residual(x @ self.weights, self.head.targets(chunk.y, x.dtype))
        own = torch.arange(x.shape[1]) < chunk.counts[:, None]
        return (x.mT @ (residual * own[..., None])).flatten(1)

    def stepped(self, total: Tensor, rows: int) -> Tensor:
        """(d, K) weights after this round: W − (1/β) (ΛW + total/N)."""
        data = total.unflatten(0, tuple(self.weights.shape)) / rows
        return self.weights - (self.head.l2_reg * self.weights + data) / self.head.smoothness


def train(task: Task, options: GradientOptions) -> Release:
    """Softmax regression by noisy gradient descent with step 1/β.

    Args:
        task: rows and promise.
        options: Λ, and M; None: ⌈ln N⌉ rounds, the published order.
    """
    head, sizes, rounds = task.head(SoftmaxHead, options.l2_reg), task.users.sizes, options.rounds
    if rounds is None:
        rounds = max(1, math.ceil(math.log(int(sizes.sum()))))
    start = torch.zeros(task.source.transform.dim, head.num_classes, dtype=torch.float64)
    step = GradientSum(head, start, rounds)
    step.validate()
    guarantee = Guarantee.of(sizes, step, task.privacy, task.min_survivors)
    generator, totals, report = task.draws, [], {}
    faults = task.faults or FaultInjection()
    kept = faults.surviving(len(sizes), guarantee.min_survivors)
    exact = task.noise == "discrete" and task.privacy.private
    planned = _plan(step, guarantee) if exact else None
    noise = simulated_fields(guarantee) if planned is None else gaussian_fields(planned)
    for number in range(rounds):
        summation = _summation(task, step, guarantee, sizes, planned, generator)
        for chunk in task.users.chunks():
            present = chunk.select(kept[chunk.users])
            if len(present.users):
                summation.add(present.users, step.submit(present))
        if not number:
            task.spend(**noise)
        totals.append(summation.total())
        report = summation.report()
        step = replace(step, weights=step.stepped(totals[-1], int(sizes[kept].sum())))
    return task.finish(step.weights, _report(guarantee, report, rounds), torch.cat(totals))


def _report(guarantee: Guarantee, of_round: dict[str, Any], rounds: int) -> dict[str, Any]:
    bytes_per_user = rounds * of_round["bytes_per_user"]
    return guarantee.report() | of_round | {"rounds": rounds, "bytes_per_user": bytes_per_user}


def _summation(
    task: Task,
    step: GradientSum,
    guarantee: Guarantee,
    sizes: Tensor,
    planned: DiscreteGaussianMechanism | None,
    generator: torch.Generator,
) -> FloatSum | IntegerSum:
    bare = frozenset(task.faults.known_noise if task.faults else ())
    servers = SERVERS if guarantee.privacy.noise_by == "servers" else 0
    if planned is None:
        return FloatSum(step.dimension, guarantee.float_std, generator, bare, servers)
    code = planned.fixed_point(step.entry_bound(int(sizes.max())), max(guarantee.users, servers))
    per_round = replace(planned, dimension=step.dimension)
    parties, minimum = guarantee.users, guarantee.min_survivors
    return IntegerSum(per_round, code, None, parties, minimum, bare=bare, servers=servers)


def _plan(step: GradientSum, guarantee: Guarantee) -> DiscreteGaussianMechanism:
    """Mechanism of one sum of all rounds' numbers: rounding and discreteness add up."""
    return calibrate(
        guarantee.privacy.epsilon,
        guarantee.privacy.delta,
        sensitivity=guarantee.joint_sensitivity,
        honest=guarantee.honest,
        dimension=step.rounds * step.dimension,
        rounded_users=guarantee.touched_users,
    )
