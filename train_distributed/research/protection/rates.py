"""How often unprotected gradients give records away.

`python -m train_distributed.research.protection.rates --images NPZ` attacks single images of
writers on untrained and on trained networks; with `--embeddings DIR --public DIR` it attacks a
softmax head's gradients on batches of one and of eight.
"""

import argparse
import json
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from embed import EmbeddingSet
from embed.store import TEST, TRAIN
from embed.transform_options import TransformOptions
from pretrain.cli.output import new_directory
from pretrain.cli.provenance import provenance
from pretrain.sources import open_images
from train_distributed.research.protection.data import head_federation, image_federation
from train_distributed.research.protection.estimate import Recoveries
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.mechanisms import Unprotected
from train_distributed.research.protection.similarity import Similarity
from train_distributed.research.protection.training import FederatedTraining


@dataclass(frozen=True)
class Success:
    """How attacks went, and on what models."""

    found: Recoveries  # hits (K, attacks, 1, S), a model of its own for each
    accuracies: tuple[float, ...]  # of these models

    def as_json(self) -> dict[str, Any]:
        """Records attacked, share recovered and its interval, mean accuracy of the models."""
        low, high = self.found.interval()
        return {
            "records": self.found.hits.size,
            "rate": self.found.rate,
            "low": low,
            "high": high,
            "models_accuracy": float(np.mean(self.accuracies)),
        }


def success(
    federation: FederatedTraining, similarity: Similarity, *, attacks: int, rounds: int, seed: int
) -> Success:
    """Attacks the exact gradient of every client's batch, a new model for every attack.

    Args:
        federation: clients, batch size and model.
        similarity: what counts as recovered.
        attacks: models per client, each trained for `rounds` rounds from its own random start.
        rounds: of training before the attack.
        seed: of everything.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = federation.batches(generator)
    surface, accuracies = federation.surface, []
    hits = np.zeros((len(x), attacks, 1, federation.batch), bool)
    pairs = list(product(range(attacks), range(len(x))))
    for m, k in tqdm(pairs, unit="attack", disable=None):
        start = federation.train(Unprotected(), generator, rounds)
        gradient = surface.gradient(start, x[k], surface.one_hot(y[k]))
        seen = Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))
        guess = invert(surface, seen, federation.batch, generator)
        hits[k, m, 0] = similarity.recovered(guess.x, x[k]).numpy()
        accuracies.append(surface.accuracy(start, *federation.test))
    return Success(Recoveries(hits, shared=False), tuple(accuracies))


def _images(options: argparse.Namespace) -> dict[str, object]:
    federation = image_federation(
        open_images(options.images),
        clients=options.clients,
        rows=500,
        test_rows=1000,
        batch=1,
        step=0.1,
        rounds=options.rounds,
        seed=0,
    )
    similarity = Similarity("ssim", options.threshold)
    report: dict[str, object] = {}
    for name, rounds in (("untrained", 0), ("trained", options.rounds)):
        found = success(federation, similarity, attacks=options.attacks, rounds=rounds, seed=0)
        report[name] = {"rounds": rounds} | found.as_json()
    return report


def _head(options: argparse.Namespace) -> dict[str, object]:
    private, public = EmbeddingSet.open(options.embeddings), EmbeddingSet.open(options.public)
    transform = TransformOptions(components=options.components).fit(public)
    train, test = (np.flatnonzero(private.split == part) for part in (TRAIN, TEST))
    federation = head_federation(
        private.subset(np.concatenate([train[:5000], test[:200]])),
        public,
        transform,
        clients=options.clients,
        rows=50,
        batch=1,
        step=2.0,
        rounds=options.rounds,
        seed=0,
    )
    similarity, report = Similarity("cosine", options.threshold), {}
    for batch in (1, 8):
        of_size = replace(federation, batch=batch)
        found = success(of_size, similarity, attacks=options.attacks, rounds=0, seed=0)
        report[f"batch of {batch}"] = found.as_json()
    return report


def main() -> None:
    """Reads the options, attacks, writes report.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images")
    parser.add_argument("--embeddings", type=Path)
    parser.add_argument("--public", type=Path)
    parser.add_argument("--components", type=int, default=768)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--attacks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--overwrite", action="store_true")
    options = parser.parse_args()
    if options.images is None and (options.embeddings is None or options.public is None):
        parser.error("either --images or --embeddings with --public must be given")
    found = _head(options) if options.images is None else _images(options)
    shown = {k: v for k, v in vars(options).items() if not isinstance(v, Path)}
    shown["images"] = None if options.images is None else Path(options.images).name
    with new_directory(options.out, overwrite=options.overwrite) as partial:
        report = provenance() | {"configuration": shown, "threshold": options.threshold} | found
        (partial / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
