"""One-vs-rest logistic regression."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from heads.head import OneVsRest


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
