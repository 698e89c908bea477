"""An exported file against `predict`, in its own runtime."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from embed.fast import fast_forward
from pretrain.intake.decode import squared
from pretrain.preprocess import pair
from train_distributed.one_shot.model import Release, probabilities
from train_distributed.released.encoder import encoding_of

PICTURES, ROWS, SEED = 16, 256, 0


def of_pictures(
    released: Release,
    encoder: nn.Module,
    run: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    pixels: np.ndarray,
) -> tuple[float, int]:
    """Largest difference of a probability, and how many classes differ, of (n, 3, h, w) uint8."""
    preprocess = encoding_of(released).preprocess
    forward = fast_forward(encoder, torch.device("cpu"), torch.float32, compiled=False)
    size = preprocess.pictures
    stored = pixels.transpose(0, 2, 3, 1)
    if size is not None and stored.shape[1:3] != pair(size):
        stored = np.stack([squared(np.ascontiguousarray(each), size) for each in stored])
    taken = np.ascontiguousarray(stored.transpose(0, 3, 1, 2))
    scores = released.scores(forward(preprocess(torch.from_numpy(taken))))
    shares = probabilities(scores, released.temperature).numpy()
    classes, found = run(pixels)
    return float(np.abs(found - shares).max()), int((classes != scores.argmax(1).numpy()).sum())


def some_pictures(size: tuple[int, int]) -> np.ndarray:
    """(16, 3, h, w) uint8: noise of several strengths, black and white."""
    rng = np.random.default_rng(SEED)
    pixels = rng.integers(0, 256, (PICTURES, 3, *size))
    strength = np.linspace(0, 1, PICTURES)[:, None, None, None]
    grey = np.linspace(0, 255, PICTURES)[:, None, None, None]
    return np.round(strength * pixels + (1 - strength) * grey).astype(np.uint8)


def some_rows(released: Release) -> np.ndarray:
    """(256, p) float64 embeddings: about the public mean or the centre, and far beyond it."""
    rng = np.random.default_rng(SEED)
    transform = released.transform
    features = rng.standard_normal((ROWS, transform.basis.shape[1]))
    features *= 10.0 ** rng.integers(-3, 6, (ROWS, 1))
    if transform.directions is not None and transform.centre is not None:
        features += (transform.centre @ torch.linalg.pinv(transform.directions)).numpy()
    spread = features * transform.scale.double().numpy() @ transform.basis.double().numpy().T
    return transform.mean.double().numpy() + spread


def of_rows(released: Release, pipeline: Any, rows: np.ndarray) -> tuple[float, int]:
    """Compares the answers for (n, p) embeddings with those of a scikit-learn estimator."""
    names = np.array(released.class_names)[released.predict(rows).numpy()]
    difference = np.abs(pipeline.predict_proba(rows) - released.predict_proba(rows).numpy())
    return float(difference.max()), int((pipeline.predict(rows) != names).sum())
