"""Heads: softmax, SVM and logistic regression; constants, sensitivity, loss, gradient."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Bound = Literal["tight", "paper"]
LEAST, LARGEST = 1e-60, 1e60  # of a constant in float64: products of four are still normal numbers
NARROW_LEAST, NARROW_LARGEST = 1e-12, 1e15  # of a length in float32, so that its square is
NARROW_SMOOTHNESS = 1e24  # of β in float32: a step of 1/β is far above the smallest number


@dataclass(frozen=True, kw_only=True)
class Head(ABC):
    """An L2-regularised linear head on clipped embeddings: its loss, constants and sensitivity.

    J(W) = Λ/2 ‖W‖² + 1/n Σ loss(Wᵀx, y),  ‖x‖ ≤ c (constant column included),  W ∈ R^{d×K}.

    Every guarantee is for *replacing one record* (bounded differential privacy).
    """

    num_classes: int  # K
    l2_reg: float  # Λ
    clip_norm: float  # c
    radius: float | None = None  # R: ‖W‖ ≤ R, per composition

    def __post_init__(self) -> None:
        if self.num_classes < 2:
            raise ValueError(f"num_classes must be >= 2, got {self.num_classes}")
        require_scale("l2_reg", self.l2_reg)
        require_scale("clip_norm", self.clip_norm)
        if self.radius is not None:
            require_scale("radius", self.radius)

    @property
    @abstractmethod
    def compositions(self) -> int:
        """Number of models that one record moves by `sensitivity`: 1 jointly, K one-vs-rest."""

    @property
    @abstractmethod
    def lipschitz(self) -> float:
        """L of the data term in one composition's weights (regulariser excluded)."""

    @property
    @abstractmethod
    def curvature(self) -> float:
        """Largest eigenvalue that the Hessian of the data term can have at ‖x‖ = c."""

    @property
    @abstractmethod
    def norm_dims(self) -> tuple[int, ...]:
        """Dimensions of W (..., d, K) over which one composition's norm runs."""

    @abstractmethod
    def targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """Encodes labels (..., n), or findings, for `data_loss` and `residual`: (..., n, K)."""

    @abstractmethod
    def data_loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Loss of each row from its scores (..., n, K): (..., n)."""

    @abstractmethod
    def residual(self, scores: Tensor, targets: Tensor, dim: int = -1) -> Tensor:
        """Derivative of `data_loss` by the scores (..., n, K), or of any shape with K at `dim`."""

    @property
    def smoothness(self) -> float:
        """β = Λ + curvature (spectral norm of the Hessian of J)."""
        return self.l2_reg + self.curvature

    def sensitivity(self, n: int, *, bound: Bound = "tight") -> float:
        """L2 sensitivity of one composition of one head when one of its n records is replaced.

        tight: 2L/(Λn). The regulariser's gradient is the same function on both neighbours, so a
        visit of the differing record moves the iterate by α_m·2L/b at most; every other step
        contracts by (1 − α_m Λ) and projection never expands, so a visit at step t of T
        contributes at most 2L/(bΛT), and the visits sum to 2L/(Λ b ⌈n/b⌉) ≤ 2L/(Λn). It holds
        for `fit_sgd` as implemented (whole epochs, nominal batch size, m = 1, 2, …) and for the
        minimiser.
        paper: 2(ΛR + L)/(Λn), Thm 4.1 and Ex. 3.16 of Kirschte et al. 2024.

        Raises:
            ValueError: n < 1, an unknown bound, or bound="paper" without a radius.
        """
        if n < 1:
            raise ValueError(f"n must be >= 1, got {n}")
        if bound == "tight":
            return 2 * self.lipschitz / (self.l2_reg * n)
        if bound == "paper":
            if self.radius is None:
                raise ValueError("radius must be given for bound='paper', got None")
            return 2 * (self.l2_reg * self.radius + self.lipschitz) / (self.l2_reg * n)
        raise ValueError(f"bound must be 'tight' or 'paper', got {bound!r}")

    def loss(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """J(W): mean over rows, regulariser included.

        Args:
            weights: (..., d, K).
            x: (..., n, d).
            y: (..., n) int64 in [0, K).

        Returns:
            (...) one value per user.
        """
        data = self.data_loss(x @ weights, self.targets(y, x.dtype)).mean(-1)
        return data + self.l2_reg / 2 * weights.square().sum((-2, -1))

    def gradient(self, weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """∇J(W), shapes as in `loss`: (..., d, K)."""
        residual = self.residual(x @ weights, self.targets(y, x.dtype))
        return self.l2_reg * weights + x.mT @ residual / x.shape[-2]


class OneVsRest(Head):
    """K independent binary problems: class k against all others, weights column by column."""

    @property
    def compositions(self) -> int:
        """K: replacing one record moves every class's column."""
        return self.num_classes

    @property
    def lipschitz(self) -> float:
        """L = c per class: |loss'| ≤ 1."""
        return self.clip_norm

    @property
    def norm_dims(self) -> tuple[int, ...]:
        """Each column has a norm of its own."""
        return (-2,)

    def targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """+1 in the column of the label, −1 elsewhere; of findings ±1, and 0 where unknown.

        A margin of 0 times the target leaves no slope: an unknown finding moves no weights.
        """
        if y.dtype == torch.int8:
            return torch.where(y < 0, 0, 2 * y - 1).to(dtype)
        return one_hot(y, self.num_classes, dtype).mul_(2).sub_(1)


def one_hot(y: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    """Rows of the identity: (...) int64 -> (..., K); refuses findings, of which a row has many."""
    if y.dtype == torch.int8:
        raise ValueError("y must be int64 classes, got findings, which svm and logistic can learn")
    encoded = torch.zeros(*y.shape, num_classes, dtype=dtype, device=y.device)
    return encoded.scatter_(-1, y.unsqueeze(-1), 1)


def check_precision(head: Head, dtype: torch.dtype) -> None:
    """Refuses a head whose constants rows of this type cannot carry.

    Float64 carries all that a head may have.

    Args:
        head: c, R, Λ, L and β.
        dtype: of the rows.

    Raises:
        ValueError: naming the constant, its range in float32 and its value.
    """
    if dtype == torch.float64:
        return
    lengths = {"clip_norm": head.clip_norm, "lipschitz / l2_reg": head.lipschitz / head.l2_reg}
    if head.radius is not None:
        lengths["radius"] = head.radius
    for name, value in lengths.items():
        if not NARROW_LEAST <= value <= NARROW_LARGEST:
            raise ValueError(
                f"{name} must lie in [{NARROW_LEAST}, {NARROW_LARGEST}] for rows in {dtype}, "
                f"got {value}"
            )
    if not head.smoothness <= NARROW_SMOOTHNESS:
        raise ValueError(
            f"l2_reg + curvature must be <= {NARROW_SMOOTHNESS} for rows in {dtype}, "
            f"got {head.smoothness}"
        )


def require_scale(name: str, value: float) -> None:
    """Refuses a constant that is not positive and finite, or whose powers are not.

    Raises:
        ValueError: naming the constant, its range and its value.
    """
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be finite and > 0, got {value}")
    if not LEAST <= value <= LARGEST:
        raise ValueError(f"{name} must lie in [{LEAST}, {LARGEST}], got {value}")


@dataclass(frozen=True, kw_only=True)
class SoftmaxHead(Head):
    """L2-regularised softmax regression on clipped embeddings.

    J(W) = Λ/2 ‖W‖² + mean CE(softmax(Wᵀx), y),  ‖x‖ ≤ c (constant column included),  ‖W‖ ≤ R.
    """

    @property
    def compositions(self) -> int:
        """1: the whole matrix moves by `sensitivity` in Frobenius norm."""
        return 1

    @property
    def lipschitz(self) -> float:
        """L = √2·c of the data term (Thm N.1 of Kirschte et al. 2024, regulariser excluded)."""
        return math.sqrt(2) * self.clip_norm

    @property
    def curvature(self) -> float:
        """c²/2: diag(p) − ppᵀ has no eigenvalue above 1/2."""
        return self.clip_norm**2 / 2

    @property
    def norm_dims(self) -> tuple[int, ...]:
        """One Frobenius norm for the whole matrix."""
        return (-2, -1)

    def targets(self, y: Tensor, dtype: torch.dtype) -> Tensor:
        """(..., n, K) one-hot rows of the labels."""
        return one_hot(y, self.num_classes, dtype)

    def data_loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """(..., n) cross-entropy −log softmax(s)_y of every row."""
        return scores.logsumexp(-1) - (scores * targets).sum(-1)

    def residual(self, scores: Tensor, targets: Tensor, dim: int = -1) -> Tensor:
        """softmax(s) − one-hot(y), the derivative by the scores."""
        if dim != -1:  # fast where classes come first
            return torch.softmax(scores.movedim(dim, 0), 0).movedim(0, dim).sub_(targets)
        return torch.softmax(scores, dim).sub_(targets)


@dataclass(frozen=True, kw_only=True)
class HuberSVMHead(OneVsRest):
    """One-vs-rest SVM with Huber loss (Chapelle 2007) on clipped embeddings, z = ±w_kᵀx.

    huber(z) = 0 for z > 1+h;  (1+h−z)²/(4h) for |1−z| ≤ h;  1−z for z < 1−h.
    """

    relaxation: float = 0.1  # h

    def __post_init__(self) -> None:
        super().__post_init__()
        require_scale("relaxation", self.relaxation)

    @property
    def curvature(self) -> float:
        """c²/(2h) for every class: the parabola's second derivative is 1/(2h)."""
        return self.clip_norm**2 / (2 * self.relaxation)

    def data_loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Sum over the K binary problems."""
        h = self.relaxation
        gap = 1 + h - scores * targets  # 1+h−z: the parabola where 0 ≤ gap ≤ 2h, linear beyond
        return (gap.clamp(0, 2 * h).square() / (4 * h) + (gap - 2 * h).clamp(min=0)).sum(-1)

    def residual(self, scores: Tensor, targets: Tensor, dim: int = -1) -> Tensor:
        """Slope of each binary problem by its score: ∓clamp((1+h−z)/(2h), 0, 1)."""
        h = self.relaxation
        slope = (scores * targets).neg_().add_(1 + h).div_(2 * h).clamp_(0, 1)
        return slope.mul_(targets).neg_()


@dataclass(frozen=True, kw_only=True)
class LogisticHead(OneVsRest):
    """One-vs-rest logistic regression on clipped embeddings: ln(1 + e^{−z}), z = ±w_kᵀx."""

    @property
    def curvature(self) -> float:
        """c²/4 for every class: σ(1 − σ) is at most 1/4."""
        return self.clip_norm**2 / 4

    def data_loss(self, scores: Tensor, targets: Tensor) -> Tensor:
        """Sum over the K binary problems."""
        return functional.softplus(scores * -targets, threshold=40).sum(-1)  # e⁻⁴⁰ < 2⁻⁵³

    def residual(self, scores: Tensor, targets: Tensor, dim: int = -1) -> Tensor:
        """Slope of each binary problem by its score: ∓σ(−z)."""
        return (scores * targets).neg_().sigmoid_().mul_(targets).neg_()
