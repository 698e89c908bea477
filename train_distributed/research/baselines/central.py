"""All rows at one user: with our own heads and their noise, and without any privacy."""

import warnings
from dataclasses import replace

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import HeadOptions, build_method, given
from train_distributed.research.baselines.task import Task
from train_distributed.research.options import NoOptions

INVERSE_REG = 2.0  # C of the reference SVM, Kirschte et al. 2024, App. C
SOFTMAX_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # Λ
HELD_OUT = 5  # every fifth row chooses Λ


def train_as_one_user(task: Task, options: HeadOptions, *, head: str) -> Release:
    """The head of one user that holds everything: w = 1, t = 1.

    Args:
        task: rows and promise.
        options: of the head.
        head: "softmax" or "svm".
    """
    task.refuse_users()
    single = task.as_one_user()
    method = build_method(head, task.source.transform, task.source.num_classes, given(options))
    return single.summed(method, rounds=1)


def train_svm(task: Task, _: NoOptions) -> Release:
    """Linear one-vs-rest SVM with hinge loss and C = 2, not private."""
    _refuse_promise(task)
    x, y = task.pooled()
    machine = LinearSVC(C=INVERSE_REG, loss="hinge", fit_intercept=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(x.double().numpy(), y.numpy())
    task.spend()
    return _finish(task, machine.coef_, machine.classes_)


def train_softmax(task: Task, _: NoOptions) -> Release:
    """Softmax regression, not private, Λ chosen on every fifth training row."""
    _refuse_promise(task)
    x, y = task.pooled()
    rows, labels = x.double().numpy(), y.numpy()
    held_out = np.arange(len(rows)) % HELD_OUT == 0

    def score(l2_reg: float) -> float:
        fitted = _softmax(rows[~held_out], labels[~held_out], l2_reg)
        return fitted.score(rows[held_out], labels[held_out])

    best = _softmax(rows, labels, max(SOFTMAX_GRID, key=score))
    task.spend()
    return _finish(task, best.coef_, best.classes_)


def _softmax(rows: np.ndarray, labels: np.ndarray, l2_reg: float) -> LogisticRegression:
    machine = LogisticRegression(C=1 / (l2_reg * len(rows)), fit_intercept=False, max_iter=1000)
    return machine.fit(rows, labels)


def _finish(task: Task, coefficients: np.ndarray, classes: np.ndarray) -> Release:
    """Weights of the classes that occur; the others are never predicted."""
    if len(coefficients) == 1:  # two classes, told apart by one sign
        coefficients = np.concatenate([-coefficients, coefficients])
    weights = torch.zeros(task.source.transform.dim, task.source.num_classes, dtype=torch.float64)
    weights[0] = -1e12
    weights[:, torch.from_numpy(classes)] = torch.from_numpy(coefficients.T.copy())
    report = task.privacy.report() | {"noise": "none", "rounds": 1, "secure_sum": "none"}
    rows = int(task.users.sizes.max())
    return replace(task, noise="float").finish(
        weights, report | {"bytes_per_user": 4 * task.source.transform.dim * rows}
    )


def _refuse_promise(task: Task) -> None:
    if task.privacy.private:
        raise ValueError(f"epsilon must be inf for {task.name!r}, got {task.privacy.epsilon}")
    task.refuse_users()
