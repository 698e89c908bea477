"""Gradient inversion by an honest-but-curious server: deep leakage from gradients.

The server sent w to the clients and reads w' = w − step · gradient, or what a protection left of
it, so it knows (w − w')/step and w = w' + step · gradient. It looks for records whose gradient at
w is the one it saw (Zhu, Liu and Han 2019): L-BFGS on dummy inputs and soft labels, sum of squares
over the entries that it saw. For a single record the label is the one negative entry of the last
bias gradient (Zhao et al. 2020). A head's gradient on one record is [a, x] (p − y)ᵀ, of rank one,
and gives x away without any search.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from pretrain import check
from train_distributed.research.protection.mechanisms import View
from train_distributed.research.protection.training import TargetHead, TargetModel

OUTER, INNER = 100, 20  # steps of L-BFGS
SOLVED = 1e-7  # of the gradient's squared norm: the search ends
PATIENCE, PROGRESS = 5, 0.99  # it also ends where that many steps did not shrink the loss by 1 %


@dataclass(frozen=True)
class Observation:
    """A gradient as the server reads it."""

    start: Tensor  # (m,) w
    gradient: Tensor  # (m,) zero where nothing was seen
    known: Tensor  # (m,) bool

    @classmethod
    def of(cls, view: View, sent: Tensor, step: float) -> "Observation":
        """From the updated model w' that a mechanism shows.

        Args:
            view: w', possibly noisy or with entries missing.
            sent: (m,) w, the model that the clients started from.
            step: learning rate of the clients' one gradient step.
        """
        gradient = torch.where(view.known, (sent - view.values) / step, 0.0)
        return cls(sent, gradient, view.known)


def invert(
    target: TargetModel, seen: Observation, batch: int, generator: torch.Generator
) -> Tensor:
    """Reconstructs a batch from its mean gradient.

    Args:
        target: the model.
        seen: the gradient, and where it was taken.
        batch: S, known to the attacker.
        generator: draws the initial guesses.

    Returns:
        (S, *record_shape) float64 guesses; zeros where the gradient says nothing.

    Raises:
        ValueError: batch < 1.
    """
    check.at_least(1, batch=batch)
    if batch == 1 and isinstance(target, TargetHead):
        return rank_one(target, seen)
    if isinstance(target, TargetHead) and seen.known.all() and seen.gradient.any():
        return head_batch(target, seen, batch, generator)
    return deep_leakage(target, seen, batch, generator)


def deep_leakage(
    target: TargetModel, seen: Observation, batch: int, generator: torch.Generator
) -> Tensor:
    """L-BFGS (lr 1, strong Wolfe) on dummies drawn uniformly from the unit cube, logits normal.

    A search that leaves the numbers returns its last finite dummies.
    """
    x = torch.rand(batch, *target.record_shape, generator=generator, dtype=torch.float64)
    if isinstance(target, TargetHead):
        x = (2 * x - 1) / target.dim**0.5
    logits = torch.randn(batch, target.num_classes, generator=generator, dtype=torch.float64)
    fixed = target.one_hot(target.bias(seen.gradient).argmin()[None]) if batch == 1 else None
    dummies = [x.requires_grad_()] + ([] if fixed is not None else [logits.requires_grad_()])

    def mismatch() -> Tensor:
        targets = torch.softmax(logits, -1) if fixed is None else fixed
        difference = (target.gradient(seen.start, x, targets) - seen.gradient)[seen.known]
        return difference.square().sum()

    _search(mismatch, dummies, SOLVED * float(seen.gradient.square().sum()))
    return x.detach()


def head_batch(
    target: TargetHead, seen: Observation, batch: int, generator: torch.Generator
) -> Tensor:
    """Deep leakage from a head's gradient Xᵀ(P − Y)/S, searched inside its own column space.

    The leading singular vectors U (p + 1, r), r = min(S, K − 1, p + 1), span what the gradient
    shows of the rows, so only their r coordinates z are unknown: scores are z UᵀW, and U's first
    row must give back the constant.
    """
    matrix = target.matrix(seen.gradient)
    if not torch.isfinite(matrix).all():
        return torch.zeros(batch, target.dim, dtype=torch.float64)
    rank = min(batch, target.num_classes - 1, len(matrix))
    basis = torch.linalg.svd(matrix, full_matrices=False).U[:, :rank]
    weights, shown = basis.mT @ target.matrix(seen.start), basis.mT @ matrix
    scale = float(shown.norm())
    z = torch.randn(batch, rank, generator=generator, dtype=torch.float64) / rank**0.5
    logits = torch.randn(batch, target.num_classes, generator=generator, dtype=torch.float64)
    dummies = [z.requires_grad_(), logits.requires_grad_()]

    def mismatch() -> Tensor:
        residual = torch.softmax(z @ weights, -1) - torch.softmax(logits, -1)
        data = (z.mT @ residual / batch - shown).square().sum()
        return data + (scale * (z @ basis[0] - target.constant)).square().mean()

    _search(mismatch, dummies, SOLVED**2 * scale**2, history=20)
    return (z.detach() @ basis.mT)[:, 1:]


def _search(
    mismatch: Callable[[], Tensor], dummies: list[Tensor], solved: float, history: int = 100
) -> None:
    """Minimises in place; a search that leaves the numbers ends at its last finite dummies."""
    search = torch.optim.LBFGS(
        dummies,
        lr=1.0,
        max_iter=INNER,
        history_size=history,
        tolerance_grad=1e-12,
        tolerance_change=1e-14,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        loss = mismatch()
        for dummy, slope in zip(dummies, torch.autograd.grad(loss, dummies), strict=True):
            dummy.grad = slope.contiguous()
        return loss.detach()

    losses: list[float] = []
    for _ in range(OUTER):
        kept = [dummy.detach().clone() for dummy in dummies]
        loss = float(search.step(closure))
        if not all(torch.isfinite(dummy).all() for dummy in dummies):
            for dummy, last in zip(dummies, kept, strict=True):
                dummy.data.copy_(last)
            return
        losses.append(loss)
        stuck = len(losses) > PATIENCE and loss > PROGRESS * losses[-1 - PATIENCE]
        if loss <= solved or stuck:
            return


def rank_one(target: TargetHead, seen: Observation, *, rounds: int = 100) -> Tensor:
    """The record behind a head's gradient: G ≈ [a, x] rᵀ, least squares over the entries seen.

    Alternating least squares from the leading singular vectors, of which it is a fixed point where
    all entries are seen. r = p − y has one negative entry, the label's, and it is the largest.

    Args:
        target: the head.
        seen: the gradient of one record; its entries may be noisy or missing.
        rounds: iterations of alternating least squares.
    """
    matrix, known = target.matrix(seen.gradient), target.matrix(seen.known).double()
    if not torch.isfinite(matrix).all() or not matrix.any():
        return torch.zeros(1, target.dim, dtype=torch.float64)
    residual = torch.linalg.svd(matrix, full_matrices=False).Vh[0]
    row = _least_squares(matrix, known, residual)
    for _ in range(0 if known.all() else rounds):
        residual = _least_squares(matrix.mT, known.mT, row)
        row = _least_squares(matrix, known, residual)
    if residual[residual.abs().argmax()] > 0:
        row = -row
    scale = target.constant / row[0] if row[0] > 0 else 1 / row.norm()
    return (row[1:] * scale)[None]


def _least_squares(matrix: Tensor, known: Tensor, factor: Tensor) -> Tensor:
    """The vector v that brings v factorᵀ nearest to the known entries; 0 where nothing is known."""
    weight = known @ factor.square()
    return torch.where(weight > 0, matrix @ factor / weight.clamp_min(1e-300), 0.0)
