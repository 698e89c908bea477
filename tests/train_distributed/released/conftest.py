"""A released model small enough to check by hand."""

import numpy as np
import pytest
import torch

from embed import PublicTransform
from embed.encoding import Encoding
from pretrain.preprocess import Preprocess
from train_distributed import Release
from train_distributed.one_shot.model import reading
from train_distributed.one_shot.report_file import Report

NAMES = ("cat", "dog", "owl")


def make_release(dim: int = 6, components: int = 4, seed: int = 0, scale: float = 3.0) -> Release:
    """Random weights on top of a transform that centres, rotates, whitens and clips."""
    rng = np.random.default_rng(seed)
    public = rng.standard_normal((200, dim)) * np.linspace(0.2, 3, dim) + 5
    transform = PublicTransform.fit(torch.from_numpy(public).float(), components=components)
    weights = scale * rng.standard_normal((components + 1, len(NAMES)))
    return Release(
        weights=torch.from_numpy(weights),
        transform=transform,
        class_names=NAMES,
        report=Report.of(
            {
                "epsilon": 1.0,
                "delta": 1e-5,
                "method": "discriminant",
                "private": True,
                "probabilities": reading("discriminant"),
            }
        ),
        encoding=Encoding(
            encoder="simclr-small",
            encoder_hash="0" * 64,
            weights="shipped",
            preprocess=Preprocess(image_size=32, pictures=32),
        ),
    )


@pytest.fixture
def released() -> Release:
    return make_release()
