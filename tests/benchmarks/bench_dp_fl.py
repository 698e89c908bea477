"""DP-FL at w = 1 and a plain Opacus script with the same settings, on real embeddings.

python tests/benchmarks/bench_dp_fl.py --embeddings DIR --public DIR --output results/rivals/dp_fl
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path

import dp_accounting
import numpy as np
import torch
from dp_accounting.pld import PLDAccountant

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from tests.train_distributed.research.learning import learn, plain_opacus
from train_distributed import Privacy
from train_distributed.partition import split

LEARNING_RATE, CLIP, EPOCHS, BATCH, DELTA = 4.0, 0.1, 40, 1024, 1e-5


def main() -> None:
    """Reads the options, prints and writes both accuracies of every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--embeddings", type=Path, required=True)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--epsilon", type=float, default=0.6)
    parser.add_argument("--components", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    refuse_existing(arguments.output, overwrite=False)
    warnings.simplefilter("ignore")
    data, public = EmbeddingSet.open(arguments.embeddings), EmbeddingSet.open(arguments.public)
    transform = PublicTransform.fit(public, components=arguments.components)
    train, test = (np.flatnonzero(data.split == part) for part in (0, 1))
    x, y = transform(data.embeddings[train]), torch.from_numpy(data.labels[train])
    x_test, y_test = transform(data.embeddings[test]), torch.from_numpy(data.labels[test])
    classes, single = len(data.meta["class_names"]), split(y, 1)
    batches, rows = math.ceil(len(x) / BATCH), []
    for seed in range(arguments.seeds):
        began = time.perf_counter()
        released = learn(
            data,
            "dp-fl",
            Privacy(arguments.epsilon, DELTA),
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
        rows.append(
            {
                "seed": seed,
                "accuracy": report["test_accuracy"],
                "accuracy_plain_opacus": accuracy,
                "epsilon": report["epsilon"],
                "epsilon_dp_accounting": accountant.get_epsilon(DELTA),
                "sampling_rate": report["sampling_rate"],
                "seconds": halfway - began,
                "seconds_plain_opacus": ended - halfway,
            }
        )
        print(rows[-1], flush=True)
    with new_directory(arguments.output) as partial:
        result = {**provenance(), "epsilon_asked_for": arguments.epsilon, "rows": rows}
        (partial / "results.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
