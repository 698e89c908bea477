"""Users' clips to choose from: how long the submissions of users of public rows are."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from embed.compress import Compression
from torch import Tensor

from embed import EmbeddingSet
from train_distributed.one_shot.registry import build_method
from train_distributed.one_shot.statistic import Statistic
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.rehearsal import Candidates, Sizes
from train_distributed.simulation.shared_training import CLIP, RowsInMemory
from train_distributed.simulation.tasks import pose_task

QUANTILES = (0.1, 0.5)  # of the lengths
CONSTANT = 0.125  # beside features of length 1: counts of classes are small beside their sums


def clipped(
    candidates: Candidates,
    public: EmbeddingSet,
    federation: Sizes,
    *,
    quantiles: Sequence[float] = QUANTILES,
) -> Candidates:
    """Every candidate with users' clips at quantiles of what public users would submit.

    These are users like the federation's, of a task that public classes are grouped into. Nothing
    private is looked at, so a clip may be as the rehearsal likes it best: noise grows with it, and
    from the shortest submission down the signal shrinks as much. Candidates' constants become
    `CONSTANT`.
    """
    grid = {
        name: replace(options, constant=CONSTANT) for name, options in candidates.transforms.items()
    }
    groups = pose_task(public, federation.num_classes, np.random.default_rng(0))
    posed = groups[public.labels] >= 0
    labels = torch.from_numpy(groups[public.labels[posed]])
    stand_in = federation.stand_in(len(labels))
    rows, partition = stand_in.place(labels, None, torch.Generator().manual_seed(0))
    missing = federation.rows_per_user / (stand_in.rows_per_user or federation.rows_per_user)
    widest = max(options.principal(public.dim) for options in grid.values())
    compression = Compression.fit(public, widest)
    coordinates = compression.apply(public)
    offered = _sums_alone(candidates)
    settings = []
    for name, options in grid.items():
        transform = compression.fit_transform(coordinates, **options.arguments())
        x = transform(coordinates.embeddings[posed])[rows]
        users = RowsInMemory(x, labels[rows], partition)
        known: dict[object, list[float]] = {}
        for setting in (each for each in offered if each.transform == name):
            key = setting.training, *map(setting.options.get, ("radius", "alpha"))
            if key not in known:
                sent = {"moments": False} if setting.method == "discriminant" else {}
                made = (
                    setting.method,
                    transform,
                    federation.num_classes,
                    {**setting.options, **sent},
                )
                found = lengths(users, build_method(*made).statistic).numpy() * missing
                known[key] = np.quantile(found, quantiles).tolist()
            settings += [
                replace(setting, options={**setting.options, CLIP: float(f"{norm:.4g}")})
                for norm in known[key]
            ]
    return Candidates(tuple(settings), grid)


def _sums_alone(candidates: Candidates) -> list[MethodConfig]:
    """Settings but those of a weight of moments, which no clipped user sends, or of rounds."""
    apart = ("alpha", "rounds")
    return [each for each in candidates.settings if each.options.keys().isdisjoint(apart)]


def lengths(users: RowsInMemory, statistic: Statistic) -> Tensor:
    """(users,) L2 norms of what every user submits, scaled; in the order of the chunks."""
    scale = statistic.scale
    return torch.cat([(statistic.submit(c) * scale).norm(dim=1) for c in users.chunks()])
