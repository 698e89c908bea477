"""The programs behind results/protection: success rates of attacks, and the cost of exact sums.

`python tests/benchmarks/bench_protection.py rates --images NPZ` attacks single images
of writers on untrained and on trained networks; with `--embeddings DIR --public DIR` it attacks a
softmax head's gradients on batches of one and of eight. `... exact-cost` sums a head's parameters
by Paillier encryption and by secret sharing, by real messages.
"""

import json
import sys
import time
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
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST, TRAIN
from pretrain.sources import open_images
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.leakage import Recoveries
from train_distributed.research.protection.mechanisms import (
    ExactSum,
    Paillier,
    Shares,
    Unprotected,
    fixed_point,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing, arithmetic
from train_distributed.research.protection.training import (
    FederatedTraining,
    FederationOptions,
    head_federation,
    image_federation,
)


def success(
    federation: FederatedTraining, threshold: float, *, attacks: int, seed: int
) -> tuple[Recoveries, list[float]]:
    """Attacks the exact gradient of every client's batch, a new model for every attack.

    Args:
        federation: clients, batch size, model, and its training rounds before an attack.
        threshold: similarity above which a record counts as recovered.
        attacks: models per client, each trained from its own random start.
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
        start = federation.train(Unprotected(), generator)
        gradient = target.gradient(start, x[k], target.one_hot(y[k]))
        seen = Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))
        guess = invert(target, seen, batch, generator)
        hits[k, m, 0] = target.recovered(guess, x[k], threshold).numpy()
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
        cases = self._of_images() if self.images is not None else self._of_head()
        found = {
            name: {"rounds": federation.options.rounds} | self._attacked(federation)
            for name, federation in cases.items()
        }
        shown = {k: v for k, v in asdict(self).items() if not isinstance(v, Path)}
        shown["images"] = None if self.images is None else Path(self.images).name
        with new_directory(self.out, overwrite=self.overwrite) as partial:
            report = provenance() | {"configuration": shown, "threshold": self.threshold} | found
            write_json(partial / "report.json", report)
        print(json.dumps(found, indent=1))

    def _of_images(self) -> dict[str, FederatedTraining]:
        options = FederationOptions(clients=self.clients, rows=500, step=0.1, rounds=self.rounds)
        trained = image_federation(open_images(str(self.images)), options, test_rows=1000)
        return {"untrained": _with(trained, rounds=0), "trained": trained}

    def _of_head(self) -> dict[str, FederatedTraining]:
        if self.embeddings is None or self.public is None:
            raise ValueError("either --images or --embeddings with --public must be given")
        private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
        refuse_other(public.encoding, private.encoding)
        train, test = (np.flatnonzero(private.split == part) for part in (TRAIN, TEST))
        federation = head_federation(
            private.subset(np.concatenate([train[:5000], test[:200]])),
            public,
            PublicTransform.fit(public, components=self.components),
            FederationOptions(clients=self.clients, rows=50, step=2.0, rounds=0),
        )
        return {f"batch of {batch}": _with(federation, batch=batch) for batch in (1, 8)}

    def _attacked(self, federation: FederatedTraining) -> dict[str, Any]:
        """Records attacked, share recovered and its interval, mean accuracy of the models."""
        found, accuracies = success(federation, self.threshold, attacks=self.attacks, seed=0)
        low, high = found.interval()
        return {
            "records": found.hits.size,
            "rate": found.rate,
            "low": low,
            "high": high,
            "models_accuracy": float(np.mean(accuracies)),
        }


def _with(federation: FederatedTraining, **options: Any) -> FederatedTraining:
    return replace(federation, options=replace(federation.options, **options))


def cost(mechanism: ExactSum, models: torch.Tensor) -> dict[str, Any]:
    """One aggregation of all clients' models (K, m), in this process, one client after the other.

    Returns:
        Bytes and CPU seconds of one client and of the busiest server, wall seconds of everything
        with key generation, and whether the mean is that of the fixed-point numbers bit for bit.
    """
    began = time.perf_counter()
    out = mechanism.exchange(models, None)
    wall = time.perf_counter() - began
    return {
        "mechanism": mechanism.name,
        "parameter": mechanism.parameter,
        "bytes_per_client": out.bytes_per_client,
        "cpu_seconds_per_client": out.seconds_per_client,
        "cpu_seconds_of_server": out.seconds_server,
        "cpu_seconds_of_all": len(models) * out.seconds_per_client + out.seconds_server,
        "wall_seconds_of_all": wall,
        "exact": torch.equal(out.mean, mechanism.mean(models, None)),
    }


@dataclass(frozen=True, kw_only=True)
class ExactCost:
    """One aggregation by Paillier encryption and one by secret sharing."""

    clients: int = 10
    parameters: int = 7690
    key_bits: int = DEPLOYED_BITS
    out: Path = Path("results/protection/exact_sums")
    overwrite: bool = False

    def run(self) -> None:
        """Measures, prints, writes report.json."""
        refuse_existing(self.out, overwrite=self.overwrite)
        generator = torch.Generator().manual_seed(0)
        shape = (self.clients, self.parameters)
        models = torch.randn(shape, generator=generator, dtype=torch.float64)
        exact = (Paillier(self.key_bits), Shares())
        found = [cost(mechanism, models) for mechanism in exact]
        slots = Packing(fixed_point(self.clients), self.key_bits).slots
        report = provenance() | {
            "clients": self.clients,
            "parameters": self.parameters,
            "paillier_arithmetic": arithmetic(),
            "parameters_per_ciphertext": slots,
            "sums": found,
        }
        with new_directory(self.out, overwrite=self.overwrite) as partial:
            write_json(partial / "report.json", report)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Rates | ExactCost)))
