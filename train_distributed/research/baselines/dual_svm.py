"""DP-SVM-SMO: blind averaging of hinge-loss SVMs from liblinear (Kirschte et al. 2024, App. C).

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

from heads import HuberSVMHead
from train_distributed.one_shot.blind_averaging import AveragedHeads, TrainedHeads
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.statistic import Chunk
from train_distributed.research.baselines.task import Task
from train_distributed.research.options import RegularisedOptions

TOLERANCE, ITERATIONS = 2e-12, 10_000


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


def train(task: Task, options: RegularisedOptions) -> Release:
    """Averages the users' SVMs.

    Args:
        task: rows and promise.
        options: Λ; None: 1.
    """
    l2_reg = 1.0 if options.l2_reg is None else options.l2_reg
    head = task.head(HuberSVMHead, l2_reg)  # for c and Λ, which hinge loss shares with it
    heads = DualSVM(head=head, dim=task.source.transform.dim)
    averaged = AveragedHeads(statistic=heads)
    released = task.summed(Method(task.name, heads, averaged, head.num_classes))
    report = released.report.with_reason(
        "the promise holds only where liblinear has converged, which it does not certify"
    )
    unfinished = {"users_not_converged": len(heads.unfinished)}
    return replace(released, report=report | {"simulation_only": unfinished})
