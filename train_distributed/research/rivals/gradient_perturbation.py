"""Gradient perturbation after Jayaraman, Wang, Evans and Gu (NeurIPS 2018), Algorithm 2.

M rounds of full-batch gradient descent; every round one secure sum adds up all users' gradients,
with each user's share of the noise in it. One record moves a round's sum by 2L; the M rounds are
Gaussian mechanisms chosen adaptively, together one of sensitivity 2L√M (Dong, Roth and Su 2022),
instead of the published zero-concentrated bound, which is looser.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from heads import Head, SoftmaxHead
from pretrain import check
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import FaultInjection, ReleaseRequest
from train_distributed.one_shot.statistic import Chunk, Statistic
from train_distributed.one_shot.summation import Plan, PlannedSum, RunningSum
from train_distributed.research.rivals.common import finish, head_of, spend, users_of
from train_distributed.research.rivals.options import GradientOptions

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


@dataclass(frozen=True)
class AllRounds(GradientSum):
    """The numbers of all rounds as one sum: their rounding and discreteness add up."""

    @property
    def dimension(self) -> int:
        """Numbers in all rounds' submissions, M d K."""
        return self.rounds * super().dimension


def train(request: ReleaseRequest, options: GradientOptions) -> Release:
    """Softmax regression by noisy gradient descent with step 1/β.

    Args:
        request: rows and promise.
        options: Λ, and M; None: ⌈ln N⌉ rounds, the published order.
    """
    head, users = head_of(request, SoftmaxHead, options.l2_reg), users_of(request)
    sizes, rounds = users.sizes, options.rounds
    if rounds is None:
        rounds = max(1, math.ceil(math.log(int(sizes.sum()))))
    start = torch.zeros(request.source.transform.dim, head.num_classes, dtype=torch.float64)
    step = GradientSum(head, start, rounds)
    step.validate()
    given = {"discrete": request.noise == "discrete", "generator": request.draws}
    together = AllRounds(head, start, rounds)
    plan = Plan.of(together, sizes, request.privacy, request.min_survivors, **given)
    guarantee, whole = plan.main.guarantee, plan.main.mechanism
    planned = PlannedSum(step, guarantee, replace(whole, dimension=step.dimension))
    faults, totals = request.faults or FaultInjection(), []
    kept = faults.surviving(len(sizes), guarantee.min_survivors)
    for number in range(rounds):
        summation = RunningSum(planned, frozenset(faults.known_noise))
        for chunk in users.chunks():
            present = chunk.select(kept[chunk.users])
            if len(present.users):
                summation.add(present.users, step.submit(present))
        if not number:
            spend(request, **plan.spends())
        totals.append(summation.total())
        step = replace(step, weights=step.stepped(totals[-1], int(sizes[kept].sum())))
    report = guarantee.report() | planned.mechanism.report() | Plan((planned,), sizes).report_sent()
    report |= {"rounds": rounds, "bytes_per_user": rounds * report["bytes_per_user"]}
    return finish(request, step.weights, report, torch.cat(totals))
