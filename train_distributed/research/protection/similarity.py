"""Similarity of a reconstruction and a record: SSIM or PSNR of images, cosine of embeddings."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from pretrain import check

Measure = Literal["ssim", "psnr", "cosine"]
PSNR_RANGE = 50.0  # decibels that count as 1


@dataclass(frozen=True)
class Similarity:
    """A measure Ω and its threshold t: a record is recovered where Ω > t.

    Raises:
        ValueError: a threshold outside (0, 1), or an unknown measure.
    """

    measure: Measure
    threshold: float

    def __post_init__(self) -> None:
        check.one_of(get_args(Measure), measure=self.measure)
        check.within("(0, 1)", threshold=self.threshold)

    def of(self, guess: Tensor, record: Tensor) -> float:
        """Ω of one guess and one record of the same shape; −1 for a guess that is not finite.

        ssim: images (channels, h, w) in [0, 1], the guess clipped to it. psnr: likewise, decibels
        over 50, at most 1. cosine: vectors.
        """
        if not torch.isfinite(guess).all():
            return -1.0
        if self.measure == "cosine":
            return float(torch.nn.functional.cosine_similarity(guess, record, dim=0))
        clipped = guess.clamp(0, 1)
        if self.measure == "psnr":
            error = float((clipped - record).square().mean())
            return 1.0 if error == 0 else min(1.0, -10 * math.log10(error) / PSNR_RANGE)
        return _ssim(clipped, record)

    def recovered(self, guesses: Tensor, records: Tensor) -> Tensor:
        """(S,) bool: whether any guess (G, ...) is the record (S, ...)."""
        return torch.tensor(
            [
                any(self.of(guess, record) > self.threshold for guess in guesses)
                for record in records
            ]
        )


def _ssim(guess: Tensor, record: Tensor) -> float:
    metrics = check.installed("skimage.metrics", "ssim", package="scikit-image", extra="protection")
    pictures = guess.numpy(), record.numpy()
    return float(metrics.structural_similarity(*pictures, data_range=1.0, channel_axis=0))
