"""Users' clips to choose from: how long the submissions of users of public rows are."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet
from embed.compress import Compression
from train_distributed.one_shot.methods import Method, build_method
from train_distributed.simulation.plan import Setting
from train_distributed.simulation.rehearsal import Candidates, Sizes, pose_task
from train_distributed.simulation.shared_training import CLIP, RowsInMemory

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
    `CONSTANT`, and a discriminant is offered without moments too, which lengthen what is sent.

    Args:
        candidates: without users' clips.
        public: labelled, with at least K classes.
        federation: sizes of the run.
        quantiles: of the lengths of submissions.
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
    compression = Compression.fit(public, max(t.components or 1 for t in grid.values()))
    coordinates = compression.apply(public)
    offered = [each for setting in candidates.settings for each in _with_and_without(setting)]
    settings = []
    for name, options in grid.items():
        transform = compression.fit_transform(coordinates, **options.arguments())
        x = transform(coordinates.embeddings[posed])[rows]
        users = RowsInMemory(x, labels[rows], partition)
        known: dict[object, list[float]] = {}
        for setting in (each for each in offered if each.transform == name):
            key = setting.training, *map(setting.options.get, ("radius", "alpha"))
            if key not in known:
                made = setting.method, transform, federation.num_classes, setting.options
                found = lengths(users, build_method(*made)).numpy() * missing
                known[key] = np.quantile(found, quantiles).tolist()
            settings += [
                replace(setting, options={**setting.options, CLIP: float(f"{norm:.4g}")})
                for norm in known[key]
            ]
    return Candidates(tuple(settings), grid)


def _with_and_without(setting: Setting) -> list[Setting]:
    """A discriminant that sends moments, and one that does not; none of further rounds."""
    if setting.options.get("rounds"):
        return []
    if setting.method != "discriminant" or not {"moments", "alpha"}.isdisjoint(setting.options):
        return [setting]
    return [setting, replace(setting, options={**setting.options, "moments": "none"})]


def lengths(users: RowsInMemory, method: Method) -> Tensor:
    """(users,) L2 norms of what every user submits, scaled; in the order of the chunks."""
    scale = method.scale
    return torch.cat([(method.submit(c) * scale).norm(dim=1) for c in users.chunks()])
