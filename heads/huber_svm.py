"""One-vs-rest support vector machine with the hinge smoothed by a parabola."""

from dataclasses import dataclass

from torch import Tensor

from heads.head import OneVsRest, require_scale


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
