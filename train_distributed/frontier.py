"""The frontier of accuracy and privacy: blind averaging as published against everything we have."""

import math
from dataclasses import replace

import numpy as np
import torch

from embed import EmbeddingSet, PublicTransform
from train_distributed.experiment import Setting
from train_distributed.run import TransformOptions

COMPONENTS = (64, 128, 256)
PAPER_QUANTILE = 0.955
PAPER_CONSTANT = 1 / 32  # the published 1 beside c = 34.854, in units of c


def frontier_transforms(public: EmbeddingSet) -> dict[str, PublicTransform]:
    """By name: raw is only scaled and clipped, as published; pca-q centred, white, clipped hard."""
    fitted = {
        f"pca-{q}": TransformOptions(components=q).fit(public)
        for q in COMPONENTS
        if q <= public.dim
    }
    return {"raw": raw_transform(public)} | fitted


def raw_transform(public: EmbeddingSet) -> PublicTransform:
    """Embeddings as they are, divided by the 95.5th percentile of public norms, clipped to 1."""
    norms = [np.linalg.norm(block.astype(np.float64), axis=1) for block in public.blocks()]
    scale = float(np.quantile(np.concatenate(norms), PAPER_QUANTILE))
    clip_norm = math.sqrt(1 + PAPER_CONSTANT**2)
    identity = PublicTransform.identity(public.dim, clip_norm, PAPER_CONSTANT)
    return replace(
        identity, scale=torch.full((public.dim,), scale), fitted_on=public.content_hash()
    )


def frontier_settings(public_dim: int) -> tuple[Setting, ...]:
    """What is compared; the paper's softmax with its hyper-parameters searched per cell.

    Λ and R are in units of the clipped rows, whose norm is about 1: the published Λ 1 … 30 and
    R .1 … 1 at c = 34.854 are 8e-4 … .025 and 3.5 … 35 here; the search reaches further.
    """
    paper = tuple(
        Setting(
            "softmax, raw, paper's sensitivity",
            "softmax",
            "raw",
            {"l2_reg": l2_reg, "radius": radius, "bound": "paper"},
        )
        for l2_reg in (0.003, 0.01, 0.03, 0.1, 0.3)
        for radius in (1.0, 3.0, 10.0)
    )
    ours = []
    for q in (q for q in COMPONENTS if q <= public_dim):
        ours += [
            Setting(f"softmax, PCA-{q}", "softmax", f"pca-{q}", {"l2_reg": 1.0}),
            Setting(f"class sums, PCA-{q}", "class-sums", f"pca-{q}"),
            Setting(f"least squares, PCA-{q}", "least-squares", f"pca-{q}"),
        ]
    return paper + tuple(ours)
