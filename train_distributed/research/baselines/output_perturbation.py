"""Output perturbation after Jayaraman, Wang, Evans and Gu (NeurIPS 2018), Algorithm 1.

Every user minimises its regularised objective, one secure sum averages the minimisers, all users
weighing the same. The smallest user sets the noise: 2L/(w n_min Λ), with the sensitivity 2L/(nΛ)
of Chaudhuri, Monteleoni and Sarwate (2011). With equal sizes it is blind averaging; the published
protocol adds the noise inside a two-party computation, ours in equal shares at the users.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from heads import LogisticHead, fit_exact
from heads.exact import certified_sensitivity, default_tolerance
from train_distributed.one_shot.blind_averaging import AveragedHeads, TrainedHeads
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.statistic import Chunk, NoisedSum
from train_distributed.research.baselines.task import Task
from train_distributed.research.options import RegularisedOptions


@dataclass(frozen=True, kw_only=True)
class AveragedMinimisers(TrainedHeads):
    """User i submits W_i / w."""

    users: int  # w, that were invited

    def entry_bound(self, n: int) -> float:
        """‖W‖/w bounds every entry."""
        return self.weight_bound(1) / self.users

    def record_sensitivity(self, sizes: Tensor) -> float:
        """2L/(Λ n_min w), and what the solver leaves: convex in n, largest at an end."""
        return max(self._moved(int(sizes.min())), self._moved(int(sizes.max()))) / self.users

    def _moved(self, n: int) -> float:
        tolerance = default_tolerance(self.head, n)
        return certified_sensitivity(self.head, n, tolerance, torch.float32)

    def user_sensitivity(self, sizes: Tensor) -> Tensor:
        """(users,) twice the largest minimiser there is, over w."""
        largest = 2 * self.weight_bound(int(sizes.min())) / self.users
        return torch.full((len(sizes),), largest, dtype=torch.float64)

    def zero_out_sensitivity(self, sizes: Tensor) -> float:
        """Not more than a replacement, for which there is room for another record's gradient."""
        return self.record_sensitivity(sizes)

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64."""
        solution = fit_exact(self.head, chunk.x, chunk.y, counts=chunk.counts)
        return solution.weights.double().flatten(1) / self.users


@dataclass(frozen=True, kw_only=True)
class PlainAverage(AveragedHeads):
    """Sum as it is: the average; where users dropped out, times the share that stayed."""

    def fit(self, noised: NoisedSum) -> Fitted:
        """(d, K) weights."""
        shape = (self.statistic.dim, self.statistic.head.num_classes)
        return Fitted(noised.total.unflatten(0, shape))


def train(task: Task, options: RegularisedOptions) -> Release:
    """Averages the minimisers of one-vs-rest logistic regression, the published choice.

    Args:
        task: rows and promise.
        options: Λ; None: 1.
    """
    head = task.head(LogisticHead, 1.0 if options.l2_reg is None else options.l2_reg)
    users = task.users.partition.users
    heads = AveragedMinimisers(head=head, dim=task.source.transform.dim, users=users)
    estimator = PlainAverage(statistic=heads)
    return task.summed(Method(task.name, heads, estimator, head.num_classes))
