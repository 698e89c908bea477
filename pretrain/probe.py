"""Probes of embeddings: k nearest neighbours and a linear classifier."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from pretrain.preprocess import Preprocess

BATCH = 256
L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2)


@torch.inference_mode()
def embed_all(encoder: nn.Module, images: Tensor, preprocess: Preprocess | None = None) -> Tensor:
    """Embeds (n, 3, h, w) uint8 images in batches, (n, p) float32."""
    preprocess = preprocess or Preprocess()
    encoder.eval()
    device = next(encoder.parameters()).device
    rows = []
    for batch in images.split(BATCH):
        pixels = preprocess(batch.to(device)).contiguous(memory_format=torch.channels_last)
        rows.append(encoder(pixels).float().cpu())
    return torch.cat(rows)


@torch.inference_mode()
def knn_accuracy(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor, *, k: int = 20
) -> float:
    """Share of test rows whose k nearest training rows (cosine) vote for their label.

    Votes weigh exp(similarity / 0.1), as is customary for self-supervised encoders.
    """
    if not 1 <= k <= len(train):
        raise ValueError(f"k must be in [1, {len(train)}], got {k}")
    classes = int(torch.cat([train_labels, test_labels]).max()) + 1
    keys = functional.normalize(train, dim=1)
    right = 0
    for rows, labels in zip(test.split(1000), test_labels.split(1000), strict=True):
        near, index = (functional.normalize(rows, dim=1) @ keys.T).topk(k, dim=1)
        votes = torch.zeros(len(rows), classes)
        votes.scatter_add_(1, train_labels[index], (near / 0.1).exp())
        right += int((votes.argmax(1) == labels).sum())
    return right / len(test)


def linear_accuracy(
    train: Tensor,
    train_labels: Tensor,
    test: Tensor,
    test_labels: Tensor,
    *,
    l2_reg: float | None = None,
    iterations: int = 100,
) -> float:
    """Test accuracy of multinomial logistic regression on standardised rows (L-BFGS).

    Args:
        train: (n, p) rows.
        train_labels: (n,) int64.
        test: (m, p) rows.
        test_labels: (m,) int64.
        l2_reg: weight penalty; None: the best on a tenth of the training rows, held out.
        iterations: of L-BFGS.
    """
    if l2_reg is None:
        fit, held = train[: len(train) * 9 // 10], train[len(train) * 9 // 10 :]
        y, held_y = train_labels[: len(fit)], train_labels[len(fit) :]
        scores = [
            linear_accuracy(fit, y, held, held_y, l2_reg=l2, iterations=iterations // 2)
            for l2 in L2_GRID
        ]
        l2_reg = L2_GRID[max(range(len(scores)), key=scores.__getitem__)]
    mean, std = train.mean(0), train.std(0).clamp_min(1e-6)
    weights, bias = _fit_linear((train - mean) / std, train_labels, l2_reg, iterations)
    predicted = functional.linear((test - mean) / std, weights, bias).argmax(1)
    return float((predicted == test_labels).double().mean())


def _fit_linear(x: Tensor, y: Tensor, l2_reg: float, iterations: int) -> tuple[Tensor, Tensor]:
    """(K, p) weights and (K,) bias for centred rows x.

    L-BFGS moves in coordinates in which no curvature exceeds one: a class's Hessian is at most
    xᵀx / 2n + λ (Böhning 1992). In those of x it takes four times as many steps.
    """
    values, directions = torch.linalg.eigh(x.T @ x / len(x))
    curvature = values.clamp_min(1e-6 * float(values[-1])) / 2 + l2_reg
    back = directions / curvature.sqrt()
    rows = x @ back
    classes = int(y.max()) + 1
    weights = torch.zeros(classes, x.shape[1], requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    solver = torch.optim.LBFGS([weights, bias], max_iter=iterations, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(functional.linear(rows, weights, bias), y)
        loss = loss + l2_reg / 2 * (weights.square() / curvature).sum()
        loss.backward()
        return loss

    solver.step(closure)  # pyright: ignore[reportArgumentType]
    return weights.detach() @ back.T, bias.detach()
