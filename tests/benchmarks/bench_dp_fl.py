"""DP-FL at w = 1 and a plain Opacus script with the same settings, on real embeddings.

python tests/benchmarks/bench_dp_fl.py --embeddings DIR --public DIR --output results/rivals/dp_fl
"""

import math
import time
import warnings
from pathlib import Path

import dp_accounting
import numpy as np
import torch
import tyro
from dp_accounting.pld import PLDAccountant

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.output import new_directory, refuse_existing, write_json
from pretrain.cli.provenance import provenance
from tests.train_distributed.research.learning import learn, plain_opacus
from train_distributed import Privacy
from train_distributed.partition import split

LEARNING_RATE, CLIP, EPOCHS, BATCH, DELTA = 4.0, 0.1, 40, 1024, 1e-5


def main(
    embeddings: Path,
    public: Path,
    output: Path,
    epsilon: float = 0.6,
    components: int = 64,
    seeds: int = 3,
) -> None:
    """Prints and writes both accuracies of every seed."""
    refuse_existing(output, overwrite=False)
    warnings.simplefilter("ignore")
    data = EmbeddingSet.open(embeddings)
    transform = PublicTransform.fit(EmbeddingSet.open(public), components=components)
    train, test = (np.flatnonzero(data.split == part) for part in (0, 1))
    x, y = transform(data.embeddings[train]), torch.from_numpy(data.labels[train])
    x_test, y_test = transform(data.embeddings[test]), torch.from_numpy(data.labels[test])
    classes, single = len(data.meta["class_names"]), split(y, 1)
    batches, rows = math.ceil(len(x) / BATCH), []
    for seed in range(seeds):
        began = time.perf_counter()
        released = learn(
            data,
            "dp-fl",
            Privacy(epsilon, DELTA),
            transform=transform,
            partition=single,
            noise="float",
            generator=torch.Generator().manual_seed(seed),
        )
        halfway = time.perf_counter()
        report = released.report
        weights = plain_opacus(
            x,
            y,
            classes,
            noise=2 * report["noise_multiplier"],
            learning_rate=LEARNING_RATE,
            gradient_clip=CLIP,
            epochs=EPOCHS,
            batch_size=BATCH,
            generator=torch.Generator().manual_seed(seed),
        )
        ended = time.perf_counter()
        accountant = PLDAccountant()
        gaussian = dp_accounting.GaussianDpEvent(report["noise_multiplier"])
        sampled = dp_accounting.PoissonSampledDpEvent(1 / batches, gaussian)
        accountant.compose(sampled, EPOCHS * batches)
        accuracy = ((x_test @ weights).argmax(1) == y_test).double().mean().item()
        row = {
            "seed": seed,
            "accuracy": report["test_accuracy"],
            "accuracy_plain_opacus": accuracy,
            "epsilon": report["epsilon"],
            "epsilon_dp_accounting": accountant.get_epsilon(DELTA),
            "sampling_rate": report["sampling_rate"],
            "seconds": halfway - began,
            "seconds_plain_opacus": ended - halfway,
        }
        rows.append(row)
        print(row, flush=True)
    with new_directory(output) as partial:
        result = {**provenance(), "epsilon_asked_for": epsilon, "rows": rows}
        write_json(partial / "results.json", result)


if __name__ == "__main__":
    tyro.cli(main)
