"""Probes of embeddings: k nearest neighbours and a linear classifier."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pretrain.preprocess import Preprocess

BATCH = 256
L2_GRID = (1e-5, 1e-4, 1e-3, 1e-2)  # weight penalties over the mean loss of a row


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


def knn_accuracy(
    train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray, *, k: int = 20
) -> float:
    """Share of test rows whose k nearest training rows (cosine) vote for their label.

    Votes weigh exp(similarity / 0.1), as is customary for self-supervised encoders.
    """
    from sklearn.neighbors import KNeighborsClassifier

    weights: Any = lambda distances: np.exp((1 - distances) / 0.1)  # noqa: E731
    near = KNeighborsClassifier(min(k, len(train)), metric="cosine", weights=weights)
    return float(near.fit(train.numpy(), train_labels).score(test.numpy(), test_labels))


def linear_accuracy(
    train: Tensor, train_labels: np.ndarray, test: Tensor, test_labels: np.ndarray
) -> float:
    """Test accuracy of multinomial logistic regression on standardised rows.

    Its weight penalty is the best of `L2_GRID` on a tenth of the training rows, held out.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    def fitted(rows: Tensor, labels: np.ndarray, l2_reg: float) -> Any:
        model = LogisticRegression(C=1 / (l2_reg * len(rows)), max_iter=1000)
        return make_pipeline(StandardScaler(), model).fit(rows.numpy(), labels)

    cut = len(train) * 9 // 10
    scores = [
        fitted(train[:cut], train_labels[:cut], l2_reg).score(train[cut:], train_labels[cut:])
        for l2_reg in L2_GRID
    ]
    best = L2_GRID[int(np.argmax(scores))]
    return float(fitted(train, train_labels, best).score(test.numpy(), test_labels))
