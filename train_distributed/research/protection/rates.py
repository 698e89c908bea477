"""Rate at which unprotected gradients give records away.

`python -m train_distributed.research.protection.rates --images NPZ` attacks single images of
writers on untrained and on trained networks; with `--embeddings DIR --public DIR` it attacks a
softmax head's gradients on batches of one and of eight.
"""

import json
import sys
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from tqdm import tqdm

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from pretrain import check
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, write_json
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST, TRAIN
from pretrain.sources import open_images
from train_distributed.research.protection.estimate import Recoveries
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.mechanisms import Unprotected
from train_distributed.research.protection.training import (
    FederatedTraining,
    FederationOptions,
    head_federation,
    image_federation,
)


def success(
    federation: FederatedTraining, threshold: float, *, attacks: int, rounds: int, seed: int
) -> tuple[Recoveries, list[float]]:
    """Attacks the exact gradient of every client's batch, a new model for every attack.

    Args:
        federation: clients, batch size and model.
        threshold: similarity above which a record counts as recovered.
        attacks: models per client, each trained for `rounds` rounds from its own random start.
        rounds: training rounds before the attack.
        seed: seed of batches, models and attacks.

    Returns:
        Hits (K, attacks, 1, S), a model of its own for each, and the accuracies of these models.
    """
    generator = torch.Generator().manual_seed(seed)
    x, y = federation.batches(generator)
    target, accuracies, batch = federation.target, [], federation.options.batch
    hits = np.zeros((len(x), attacks, 1, batch), bool)
    pairs = list(product(range(attacks), range(len(x))))
    for m, k in tqdm(pairs, unit="attack", disable=None):
        start = federation.train(Unprotected(), generator, rounds)
        gradient = target.gradient(start, x[k], target.one_hot(y[k]))
        seen = Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))
        guess = invert(target, seen, batch, generator)
        hits[k, m, 0] = target.recovered(guess.x, x[k], threshold).numpy()
        accuracies.append(target.accuracy(start, *federation.test))
    return Recoveries(hits, shared=False), accuracies


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Attack unprotected gradients: of single images, or of a softmax head on embeddings."""

    images: str | None = None
    embeddings: Path | None = None
    public: Path | None = None
    components: int = 768
    clients: int = 20
    attacks: int = 1
    rounds: int = 300
    threshold: float = 0.9
    out: Path
    overwrite: bool = False

    def run(self) -> None:
        """Attacks, prints, writes report.json.

        Raises:
            ValueError: neither images nor both embedding sets.
        """
        check.within("(0, 1)", threshold=self.threshold)
        if self.images is not None:
            found = self._of_images(self.images)
        elif self.embeddings is not None and self.public is not None:
            private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
            refuse_other(public.encoding, private.encoding)
            found = self._of_head(private, public)
        else:
            raise ValueError("either --images or --embeddings with --public must be given")
        shown = {k: v for k, v in asdict(self).items() if not isinstance(v, Path)}
        shown["images"] = None if self.images is None else Path(self.images).name
        with new_directory(self.out, overwrite=self.overwrite) as partial:
            report = provenance() | {"configuration": shown, "threshold": self.threshold} | found
            write_json(partial / "report.json", report)
        print(json.dumps(found, indent=1))

    def _of_images(self, images: str) -> dict[str, Any]:
        federation = image_federation(
            open_images(images),
            FederationOptions(clients=self.clients, rows=500, step=0.1, rounds=self.rounds),
            test_rows=1000,
        )
        report = {}
        for name, rounds in (("untrained", 0), ("trained", self.rounds)):
            found = self._attacked(federation, rounds)
            report[name] = {"rounds": rounds} | found
        return report

    def _of_head(self, private: EmbeddingSet, public: EmbeddingSet) -> dict[str, Any]:
        transform = PublicTransform.fit(public, components=self.components)
        train, test = (np.flatnonzero(private.split == part) for part in (TRAIN, TEST))
        federation = head_federation(
            private.subset(np.concatenate([train[:5000], test[:200]])),
            public,
            transform,
            FederationOptions(clients=self.clients, rows=50, step=2.0, rounds=self.rounds),
        )
        report = {}
        for batch in (1, 8):
            of_size = replace(federation, options=replace(federation.options, batch=batch))
            report[f"batch of {batch}"] = self._attacked(of_size, 0)
        return report

    def _attacked(self, federation: FederatedTraining, rounds: int) -> dict[str, Any]:
        """Records attacked, share recovered and its interval, mean accuracy of the models."""
        found, accuracies = success(
            federation, self.threshold, attacks=self.attacks, rounds=rounds, seed=0
        )
        low, high = found.interval()
        return {
            "records": found.hits.size,
            "rate": found.rate,
            "low": low,
            "high": high,
            "models_accuracy": float(np.mean(accuracies)),
        }


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Rates)))
