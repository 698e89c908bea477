"""The programs behind results/protection: success rates of attacks, and the cost of exact sums.

`python tests/benchmarks/bench_protection.py rates --images NPZ` attacks single images
of writers on untrained and on trained networks; with `--embeddings DIR --public DIR` it attacks a
softmax head's gradients on batches of one and of eight. `... exact-cost` sums a head's parameters
by Paillier encryption and by secret sharing, by real messages.
"""

import time
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from embed import EmbeddingSet, PublicTransform
from embed.encoding import refuse_other
from pretrain.cli.output import refuse_existing
from pretrain.cli.provenance import provenance
from pretrain.sources import open_images
from tests.benchmarks.bench_releases import places
from tests.benchmarks.common import Table, command_line, save_folder, show
from train_distributed.research.protection import mechanisms, training
from train_distributed.research.protection.inversion import Observation, invert
from train_distributed.research.protection.leakage import Recoveries
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing, arithmetic
from train_distributed.research.protection.training import FederatedTraining, FederationOptions

COMPONENTS, THRESHOLD = 768, 0.9  # of a head's embeddings; similarity of a recovered record


def success(federation: FederatedTraining, attacks: int) -> tuple[Recoveries, list[float]]:
    """Attacks the exact gradient of every client's batch, a new model for every attack.

    Returns hits (K, attacks, 1, S) and the accuracies of the attacked models, each of which is
    trained from its own random start.
    """
    generator = torch.Generator().manual_seed(0)
    x, y = federation.batches(generator)
    target, accuracies, batch = federation.target, [], federation.options.batch
    hits = np.zeros((len(x), attacks, 1, batch), bool)
    pairs = list(product(range(attacks), range(len(x))))
    for m, k in tqdm(pairs, unit="attack", disable=None):
        start = federation.train(mechanisms.Unprotected(), generator)
        gradient = target.gradient(start, x[k], target.one_hot(y[k]))
        seen = Observation(start, gradient, torch.ones_like(gradient, dtype=torch.bool))
        guess = invert(target, seen, batch, generator)
        hits[k, m, 0] = target.recovered(guess, x[k], THRESHOLD).numpy()
        accuracies.append(target.accuracy(start, *federation.test))
    return Recoveries(hits, shared=False), accuracies


def rates(
    out: Path,
    images: str | None = None,
    embeddings: Path | None = None,
    public: Path | None = None,
    clients: int = 20,
    attacks: int = 1,
    rounds: int = 300,
) -> None:
    """Attacks unprotected gradients: of single images, or of a softmax head on embeddings."""
    given = {"images": images and Path(images).name, "components": COMPONENTS, "clients": clients}
    given |= {"attacks": attacks, "rounds": rounds, "threshold": THRESHOLD}
    if images is not None:
        options = FederationOptions(clients=clients, rows=500, step=0.1, rounds=rounds)
        trained = training.image_federation(open_images(images), options, test_rows=1000)
        cases = {"untrained": _with(trained, rounds=0), "trained": trained}
    elif embeddings is not None and public is not None:
        private, shown = EmbeddingSet.open(embeddings), EmbeddingSet.open(public)
        refuse_other(shown.encoding, private.encoding)
        train, test = places(private)
        rows = private.subset(np.concatenate([train[:5000], test[:200]]))
        transform = PublicTransform.fit(shown, components=COMPONENTS)
        options = FederationOptions(clients=clients, rows=50, step=2.0, rounds=0)
        head = training.head_federation(rows, shown, transform, options)
        cases = {f"batch of {batch}": _with(head, batch=batch) for batch in (1, 8)}
    else:
        raise ValueError("either --images or --embeddings with --public must be given")
    found = {}
    for name, federation in cases.items():
        hit, accuracies = success(federation, attacks)
        low, high = hit.interval()
        found[name] = {"rounds": federation.options.rounds, "records": hit.hits.size}
        found[name] |= {"rate": hit.rate, "low": low, "high": high}
        found[name] |= {"models_accuracy": float(np.mean(accuracies))}
    report = provenance() | {"configuration": given, "threshold": THRESHOLD} | found
    save_folder(out, report_json=report)
    show(found)


def _with(federation: FederatedTraining, **options: Any) -> FederatedTraining:
    return replace(federation, options=replace(federation.options, **options))


def cost(mechanism: mechanisms.ExactSum, models: torch.Tensor) -> dict[str, Any]:
    """One aggregation of all clients' models (K, m), in this process, one client after the other.

    `exact`: the mean is that of the fixed-point numbers bit for bit.
    """
    began = time.perf_counter()
    out = mechanism.exchange(models, None)
    wall = time.perf_counter() - began
    client, server = out.seconds_per_client, out.seconds_server
    found = {"mechanism": mechanism.name, "parameter": mechanism.parameter}
    found |= {"bytes_per_client": out.bytes_per_client, "cpu_seconds_per_client": client}
    found |= {"cpu_seconds_of_server": server, "cpu_seconds_of_all": len(models) * client + server}
    exact = torch.equal(out.mean, mechanism.mean(models, None))
    return found | {"wall_seconds_of_all": wall, "exact": exact}


def exact_cost(
    out: Path = Path("results/protection/exact_sums"), clients: int = 10, parameters: int = 7690
) -> None:
    """One aggregation by Paillier encryption and one by secret sharing."""
    refuse_existing(out, overwrite=False)
    generator, table = torch.Generator().manual_seed(0), Table()
    models = torch.randn((clients, parameters), generator=generator, dtype=torch.float64)
    for mechanism in (mechanisms.Paillier(DEPLOYED_BITS), mechanisms.Shares()):
        table.add(cost(mechanism, models))
    report = provenance() | {"clients": clients, "parameters": parameters}
    report["paillier_arithmetic"] = arithmetic()
    slots = Packing(mechanisms.fixed_point(clients), DEPLOYED_BITS).slots
    report["parameters_per_ciphertext"] = slots
    save_folder(out, report_json=report | {"sums": table.rows})


if __name__ == "__main__":
    command_line(rates=rates, exact_cost=exact_cost)
