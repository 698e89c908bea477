"""All rows in one place: AMP, our own heads as if there were one user, and models without privacy.

**AMP**: approximate minima perturbation (Iyengar et al., S&P 2019, Algorithm 1). One-vs-rest Huber
SVMs. A random linear term makes the exact minimiser private, a little noise on the result hides how
far from it the solver stopped. The theorem wants a continuous Hessian; Huber's has jumps, but is
the limit of losses that obey it with the same L and β, and so is the release. The K machines are
(ε₀, δ₀) each and compose optimally (Kairouz, Oh and Viswanath 2015).
"""

import math
import warnings
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from torch import Tensor

from heads import HuberSVMHead
from heads.rows import check_norms, row_norms
from pretrain import check
from train_distributed import accounting
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import HeadOptions, build_method, given
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import gaussian
from train_distributed.privacy.guarantee import ROUND_UP
from train_distributed.research.rivals.common import (
    finish,
    pooled,
    refuse_sum,
    refuse_users,
    require_records,
    spend,
    summed,
    users_of,
)
from train_distributed.research.rivals.options import AmpOptions, NoOptions

INVERSE_REG = 2.0  # C of the reference SVM, Kirschte et al. 2024, App. C
SOFTMAX_GRID = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)  # Λ
HELD_OUT = 5  # every fifth row chooses Λ
L, RELAXATION = 1.0, 0.1  # rows are scaled to norm 1, the published choice; h
RANK = 2  # r: replacing one record changes the Hessian by two matrices of rank 1
STEPS = 200  # of Newton's method
LARGEST_LOSS = 500.0  # ε₀ of a machine, beyond which composition is by adding up


@dataclass(frozen=True)
class Budget:
    """Split of one machine's (ε₀, δ₀)."""

    epsilon: float
    delta: float
    output: float  # share of both for the solver's inexactness: ε₂, δ₂
    noise: float  # share of ε₁ for the linear term: ε₃; the rest pays for the regulariser

    @property
    def regulariser(self) -> float:
        """Λ = rβ/(ε₁ − ε₃), of the sum over records."""
        beta = L**2 / (2 * RELAXATION)
        return RANK * beta / ((1 - self.output) * self.epsilon * (1 - self.noise)) * ROUND_UP

    def linear_std(self, rows: int) -> float:
        """σ₁ = (2L/n)(1 + t)/ε₃, t = √(2 ln 1/δ₁), and at large ε₃ the more that the proof needs.

        With s = σ₁n/2L the loss is at most t/s + 1/(2s²) but for δ₁. The published s keeps that
        below ε₃ for ε₃ ≤ 2(1 + t) only; s = (t + √(t² + 2ε₃))/(2ε₃) makes it ε₃ for all.
        """
        first = (1 - self.output) * self.epsilon * self.noise
        tail = math.sqrt(2 * math.log(1 / ((1 - self.output) * self.delta)))
        enough = (tail + math.sqrt(tail**2 + 2 * first)) / 2
        return 2 * L / rows * max(1 + tail, enough) / first * ROUND_UP

    def output_std(self, rows: int, gradient: float) -> float:
        """σ₂ for solutions within nγ/Λ of the minimiser, twice that apart, by the exact curve."""
        multiplier = accounting.noise_multiplier(
            self.output * self.epsilon, self.output * self.delta
        )
        return 2 * rows * gradient / self.regulariser * multiplier * ROUND_UP


def train_amp(request: ReleaseRequest, options: AmpOptions) -> Release:
    """All users' rows in one place, K perturbed minimisers.

    Args:
        request: rows and promise.
        options: shares of the budget.

    Raises:
        ValueError: a setting out of range.
        ArithmeticError: a machine that was not solved; nothing is released then.
    """
    refuse_sum(request)
    require_records(request.method, request.privacy)
    if not request.privacy.private:
        raise ValueError("epsilon must be finite for 'amp', got inf")
    epsilon, delta = per_machine(
        request.privacy.epsilon, request.privacy.delta, request.source.num_classes
    )
    eps_frac, eps_out_frac = options.eps_frac, options.eps_out_frac
    budget = Budget(epsilon, delta, eps_out_frac, eps_frac)
    if not (1 - eps_out_frac) * epsilon * (1 - eps_frac) < 1:
        raise ValueError(f"eps_frac must leave less than 1 of epsilon {epsilon}, got {eps_frac}")
    x, y = pooled(request)
    unit = x.double() / request.source.transform.clip_norm * L
    check_norms(row_norms(unit), L, y.shape)
    gradient, generator = tolerance(len(x)), request.draws
    head = HuberSVMHead(
        num_classes=2, l2_reg=budget.regulariser / len(x), clip_norm=L, relaxation=RELAXATION
    )
    columns = []
    spend(request)
    for k in range(request.source.num_classes):
        sign = torch.where(y == k, 1.0, -1.0).double()
        linear = gaussian(unit.shape[1], budget.linear_std(len(x)), generator)
        solved = minimise(head, unit, sign, linear, gradient)
        noise = gaussian(unit.shape[1], budget.output_std(len(x), gradient), generator)
        columns.append((solved + noise) * L / request.source.transform.clip_norm)
    report = request.privacy.report() | {
        "noise": "float",
        "rounds": 1,
        "bytes_per_user": 4 * x.shape[1] * math.ceil(len(x) / users_of(request).partition.users),
        "secure_sum": "none: every user sends its rows to one place",
        "epsilon_per_class": epsilon,
        "delta_per_class": delta,
        "l2_reg": head.l2_reg,
    }
    return finish(request, torch.stack(columns, 1), report)


def tolerance(rows: int) -> float:
    """γ of a machine of n rows: 1/n² as published, or where float64 resolves no less, 8n 2⁻⁵³."""
    return max(1 / rows**2, 8 * rows * 2.0**-53)


def minimise(
    head: HuberSVMHead, x: Tensor, sign: Tensor, linear: Tensor, tolerance: float
) -> Tensor:
    """(d,) weights with ‖∇‖ ≤ tolerance of mean Huber loss + Λ/2 ‖w‖² + bᵀw, by Newton's method.

    What rounding may hide of the gradient counts as part of it: n + d + 8 units of the data term's
    norm and 8 of the others', and of the margins the d + 8 units of ‖w‖ that the curvature L²/2h
    magnifies.

    Args:
        head: Λ and h.
        x: (N, d) float64.
        sign: (N,) ±1.
        linear: (d,) b.
        tolerance: γ.

    Raises:
        ArithmeticError: not reached within STEPS.
    """
    h, w = head.relaxation, torch.zeros_like(linear)
    signed = x * sign[:, None]
    lost, gradient = tolerance, linear

    def slope(gap: Tensor) -> Tensor:
        return signed.mT @ (gap / (2 * h)).clamp(0, 1) / -len(x)

    def value(w: Tensor) -> float:
        gap = 1 + h - signed @ w
        loss = gap.clamp(0, 2 * h).square() / (4 * h) + (gap - 2 * h).clamp(min=0)
        return float(loss.mean() + head.l2_reg / 2 * w @ w + linear @ w)

    identity = torch.eye(len(w), dtype=w.dtype)
    for _ in range(STEPS):
        gap = 1 + h - signed @ w
        gradient = slope(gap) + head.l2_reg * w + linear
        size = float(w.norm())
        lost = (len(x) + len(w) + 8 + (len(w) + 8) * size / (2 * h)) * 2.0**-53
        lost += 8 * (head.l2_reg * size + float(linear.norm())) * 2.0**-53
        if float(gradient.norm()) + lost <= tolerance:
            return w
        curved = signed[(gap > 0) & (gap < 2 * h)]
        hessian = curved.mT @ curved / (2 * h * len(x)) + head.l2_reg * identity
        step = torch.linalg.solve(hessian, gradient)
        before, drop, length = value(w), float(gradient @ step), 1.0
        while value(w - length * step) > before - 1e-4 * length * drop + 1e-15 * abs(before):
            length /= 2
        w = w - length * step
    raise ArithmeticError(
        f"gradient norm must fall to {tolerance:.3g} in {STEPS} steps, rounding included, "
        f"got {float(gradient.norm()):.3g} and rounding of up to {lost:.3g}"
    )


@cache
def per_machine(epsilon: float, delta: float, machines: int) -> tuple[float, float]:
    """(ε₀, δ₀) of which K compose to (ε, δ), optimally; half of δ pays for the K δ₀."""
    pld = check.installed("dp_accounting.pld", "amp", package="dp-accounting", extra="baselines")
    share = delta / (2 * machines)

    def composed(each: float) -> float:
        asked = accounting.discretised_delta(delta, machines)
        # e^ε₀ overflows, or δ₀ takes all that is left.
        if each > LARGEST_LOSS or asked <= delta / 2:
            return machines * each
        parameters = pld.common.DifferentialPrivacyParameters(each, share)
        # All losses are multiples of ε₀, so a grid of that size rounds none of them.
        loss = pld.privacy_loss_distribution.from_privacy_parameters(parameters, each)
        return loss.self_compose(machines).get_epsilon_for_delta(asked)

    low, high = epsilon / machines, epsilon  # adding up is always right
    while high - low > 1e-4 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if composed(middle) <= epsilon else (low, middle)
    return low, share


def train_as_one_user(request: ReleaseRequest, options: HeadOptions, *, head: str) -> Release:
    """The head of one user that holds everything: w = 1, t = 1.

    Args:
        request: rows and promise.
        options: of the head.
        head: "softmax" or "svm".
    """
    refuse_users(request)
    source, order = request.source, users_of(request).partition.order
    method = build_method(head, source.transform, source.num_classes, given(options))
    method = replace(method, transform=None)  # rows come mapped
    promise = replace(request.privacy, honest_fraction=None, noise_by="users")
    everything = Partition(order, torch.tensor([0, len(order)]))
    single = replace(request, partition=everything, privacy=promise)  # which trusts itself
    return summed(single, method, rounds=1)


def train_svm(request: ReleaseRequest, _: NoOptions) -> Release:
    """Linear one-vs-rest SVM with hinge loss and C = 2, not private."""
    _refuse_promise(request)
    x, y = pooled(request)
    machine = LinearSVC(C=INVERSE_REG, loss="hinge", fit_intercept=False, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        machine.fit(x.double().numpy(), y.numpy())
    spend(request)
    return _finish(request, machine.coef_, machine.classes_)


def train_softmax(request: ReleaseRequest, _: NoOptions) -> Release:
    """Softmax regression, not private, Λ chosen on every fifth training row."""
    _refuse_promise(request)
    x, y = pooled(request)
    rows, labels = x.double().numpy(), y.numpy()
    held_out = np.arange(len(rows)) % HELD_OUT == 0

    def score(l2_reg: float) -> float:
        fitted = _softmax(rows[~held_out], labels[~held_out], l2_reg)
        return fitted.score(rows[held_out], labels[held_out])

    best = _softmax(rows, labels, max(SOFTMAX_GRID, key=score))
    spend(request)
    return _finish(request, best.coef_, best.classes_)


def _softmax(rows: np.ndarray, labels: np.ndarray, l2_reg: float) -> LogisticRegression:
    machine = LogisticRegression(C=1 / (l2_reg * len(rows)), fit_intercept=False, max_iter=1000)
    return machine.fit(rows, labels)


def _finish(request: ReleaseRequest, coefficients: np.ndarray, classes: np.ndarray) -> Release:
    """Weights of the classes that occur; the others are never predicted."""
    if len(coefficients) == 1:  # two classes, told apart by one sign
        coefficients = np.concatenate([-coefficients, coefficients])
    source, rows = request.source, int(users_of(request).sizes.max())
    weights = torch.zeros(source.transform.dim, source.num_classes, dtype=torch.float64)
    weights[0] = -1e12
    weights[:, torch.from_numpy(classes)] = torch.from_numpy(coefficients.T.copy())
    report = request.privacy.report() | {"noise": "none", "rounds": 1, "secure_sum": "none"}
    report |= {"bytes_per_user": 4 * source.transform.dim * rows}
    return finish(replace(request, noise="float"), weights, report)


def _refuse_promise(request: ReleaseRequest) -> None:
    if request.privacy.private:
        raise ValueError(
            f"epsilon must be inf for {request.method!r}, got {request.privacy.epsilon}"
        )
    refuse_users(request)
