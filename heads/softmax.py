"""Softmax regression: one composition whatever the number of classes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from heads.head import Head, one_hot


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
