"""Averages by one secure sum, of heads that are solved in other ways than ours.

**Output perturbation** after Jayaraman, Wang, Evans and Gu (NeurIPS 2018), Algorithm 1. Every user
minimises its regularised objective, one secure sum averages the minimisers, all users weighing the
same. The smallest user sets the noise: 2L/(w n_min Λ), with the sensitivity 2L/(nΛ) of Chaudhuri,
Monteleoni and Sarwate (2011). With equal sizes it is blind averaging; the published protocol adds
the noise inside a two-party computation, ours in equal shares at the users.

**DP-SVM-SMO**: blind averaging of hinge-loss SVMs from liblinear (Kirschte et al. 2024, App. C).
The sensitivity 2c/(Λn) is that of the minimiser. Liblinear stops by a rule of its own and certifies
nothing, so the promise holds only where it has converged, which nobody can see from outside.
"""

import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.svm import LinearSVC
from torch import Tensor

from heads import HuberSVMHead, LogisticHead, fit_exact
from heads.exact import certified_sensitivity, default_tolerance
from train_distributed.one_shot.blind_averaging import AveragedHeads, TrainedHeads
from train_distributed.one_shot.method import Fitted, Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.one_shot.statistic import Chunk, NoisedSum
from train_distributed.research.rivals.common import head_of, summed, users_of
from train_distributed.research.rivals.options import RegularisedOptions

TOLERANCE, ITERATIONS = 2e-12, 10_000  # of liblinear


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


def average_minimisers(request: ReleaseRequest, options: RegularisedOptions) -> Release:
    """Averages the minimisers of one-vs-rest logistic regression, the published choice.

    Args:
        request: rows and promise.
        options: Λ; None: 1.
    """
    head = head_of(request, LogisticHead, 1.0 if options.l2_reg is None else options.l2_reg)
    users = users_of(request).partition.users
    heads = AveragedMinimisers(head=head, dim=request.source.transform.dim, users=users)
    estimator = PlainAverage(statistic=heads)
    return summed(request, Method(str(request.method), heads, estimator, head.num_classes))


@dataclass(frozen=True, kw_only=True)
class DualSVM(TrainedHeads):
    """User i submits n_i W_i, W_i the K one-vs-rest SVMs of liblinear with C = 1/(Λ n_i)."""

    unfinished: list[int] = field(default_factory=list, compare=False)  # users cut off; private

    def record_sensitivity(self, sizes: Tensor) -> float:
        """2c/Λ per class: the exact minimisers' sensitivity."""
        return 2 * self.head.lipschitz / self.head.l2_reg

    def submit(self, chunk: Chunk) -> Tensor:
        """(u, d K) float64."""
        submissions = []
        for user, x, y, count in zip(
            chunk.users.tolist(), chunk.x.double(), chunk.y, chunk.counts.tolist(), strict=True
        ):
            weights, converged = fit_dual(
                x[:count].numpy(), y[:count].numpy(), self.num_classes, self.head.l2_reg
            )
            if not converged:
                self.unfinished.append(user)
            submissions.append(count * weights.flatten())
        return torch.from_numpy(np.stack(submissions))


def fit_dual(
    x: np.ndarray, y: np.ndarray, num_classes: int, l2_reg: float
) -> tuple[np.ndarray, bool]:
    """One-vs-rest minimisers of Λ/2 ‖w‖² + mean hinge loss, and whether liblinear says so of all.

    Args:
        x: (n, d) rows, constant column first: no intercept is added.
        y: (n,) labels.
        num_classes: K.
        l2_reg: Λ.

    Returns:
        (d, K) float64, and True if no class was cut off.
    """
    weights, converged = np.zeros((x.shape[1], num_classes)), True
    for k in range(num_classes):
        sign = np.where(y == k, 1, -1)
        rows = x
        if abs(sign.sum()) == len(sign):  # liblinear wants both signs: a zero row pulls nowhere
            rows = np.concatenate([x, np.zeros((1, x.shape[1]))])
            sign = np.append(sign, -sign[0])
        machine = LinearSVC(
            C=1 / (l2_reg * len(x)),
            loss="hinge",
            tol=TOLERANCE,
            max_iter=ITERATIONS,
            fit_intercept=False,
            random_state=0,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            machine.fit(rows, sign)
        converged &= int(machine.n_iter_) < ITERATIONS
        weights[:, k] = machine.coef_[0]
    return weights, converged


def average_dual_svms(request: ReleaseRequest, options: RegularisedOptions) -> Release:
    """Averages the users' SVMs.

    Args:
        request: rows and promise.
        options: Λ; None: 1.
    """
    l2_reg = 1.0 if options.l2_reg is None else options.l2_reg
    head = head_of(request, HuberSVMHead, l2_reg)  # for c and Λ, which hinge loss shares with it
    heads = DualSVM(head=head, dim=request.source.transform.dim)
    averaged = AveragedHeads(statistic=heads)
    released = summed(request, Method(str(request.method), heads, averaged, head.num_classes))
    report = released.report.with_reason(
        "the promise holds only where liblinear has converged, which it does not certify"
    )
    unfinished = {"users_not_converged": len(heads.unfinished)}
    return replace(released, report=report | {"simulation_only": unfinished})
