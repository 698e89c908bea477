r"""The constants of ADMM and Charter, chosen on public data.

    python -m train_distributed.research.experiments.choose \
        --public DIR --output results/rounds_constants

The classes of the public set are merged to ten by the nearness of their means. Noise shrinks with
rows times ε: ε is raised by as much as users hold fewer rows here than where the constants go.
"""

import argparse
import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor
from tqdm import tqdm

from embed import EmbeddingSet, PublicTransform
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed import (
    partition,
)
from train_distributed.privacy.promise import Privacy
from train_distributed.research.baselines import multi_round

CLASSES = 10
CONSTANT = 0.5
GRIDS: dict[str, tuple[tuple[str, ...], dict[str, tuple[Any, ...]]]] = {
    "admm": (
        ("admm-dual", "admm-primal"),
        {"rho": (0.3, 1.0, 3.0), "eta": (0.1, 0.3, 1.0), "iterations": (2, 5, 10)},
    ),
    "charter": (
        ("charter", "charter-sum"),
        {
            "half_width": (0.5, 1.0, 2.0),
            "gradient_clip": (0.04, 0.08, 0.16),
            "rounds_per_feature": (0.25, 0.5, 1.0),
        },
    ),
    "charter without noise": (
        ("charter",),
        {
            "half_width": (1.0, 3.0),
            "gradient_clip": (0.3, 1.0),
            "rounds_per_feature": (1.0, 2.0),
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Choose:
    """Every constant of the grids on the public task; the best mean accuracy of a family wins."""

    public: Path
    output: Path = Path("results/rounds_constants")
    components: int = 32
    users: int = 10
    epsilon: float = 1.2  # where the constants are used
    rows_per_user: int = 5000  # there
    delta: float = 1e-5
    seeds: int = 2
    overwrite: bool = False

    def run(self) -> None:
        """Writes table.csv and report.json; prints the winners."""
        refuse_existing(self.output, overwrite=self.overwrite)
        public = EmbeddingSet.open(self.public)
        rows, test = self._task(public)
        epsilon = self.epsilon * self.rows_per_user / int(rows.users.counts.min())
        found = list(tqdm(self._scores(rows, test, epsilon), unit="run", disable=None))
        report = {
            "configuration": asdict(self)
            | {"public": self.public.name, "output": self.output.name}
            | {"epsilon_here": epsilon, "rows_here": int(rows.users.counts.min())},
            **provenance(),
            "chosen": {family: best(found, family) for family in GRIDS},
        }
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            with (directory / "table.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, ["family", "method", "seed", "accuracy", "options"])
                writer.writeheader()
                writer.writerows(found)
            (directory / "report.json").write_text(json.dumps(report, indent=1))
        print(json.dumps(report["chosen"], indent=1))

    def _task(self, public: EmbeddingSet) -> tuple[multi_round.Rows, tuple[Tensor, Tensor]]:
        transform = PublicTransform.fit(
            public,
            components=self.components,
            clip_norm=math.sqrt(1 + CONSTANT**2),
            constant=CONSTANT,
        )
        x = transform(public.embeddings, dtype=torch.float64)
        y = merge(x, torch.tensor(np.asarray(public.labels)), CLASSES)
        order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
        train, test = order[len(order) // 5 :], order[: len(order) // 5]
        users = partition.split(y[train], self.users, generator=torch.Generator().manual_seed(1))
        rows = multi_round.Rows(x[train], y[train], users, CLASSES, transform.clip_norm)
        return rows, (x[test], y[test])

    def _scores(
        self, rows: multi_round.Rows, test: tuple[Tensor, Tensor], epsilon: float
    ) -> Iterator[dict[str, Any]]:
        for family, (methods, grid) in GRIDS.items():
            promise = Privacy(math.inf if "without" in family else epsilon, self.delta)
            for values, method, seed in product(
                product(*grid.values()), methods, range(self.seeds)
            ):
                options = dict(zip(grid, values, strict=True))
                generator = torch.Generator().manual_seed(seed)
                settings = multi_round.method_options(method, options)
                (weights,) = multi_round.simulate(rows, method, [promise], settings, generator)
                right = (test[0] @ weights).argmax(1) == test[1]
                yield {
                    "family": family,
                    "method": method,
                    "seed": seed,
                    "accuracy": float(right.double().mean()),
                    "options": json.dumps(options),
                }


def merge(x: Tensor, labels: Tensor, classes: int) -> Tensor:
    """(N,) int64 in [0, classes): the classes of (N, d) rows, joined by k-means of their means."""
    names, dense = labels.unique(return_inverse=True)
    sums = torch.zeros(len(names), x.shape[1], dtype=torch.float64).index_add_(0, dense, x.double())
    means = sums / torch.bincount(dense)[:, None]
    model = KMeans(classes, n_init=10, random_state=0)  # pyright: ignore[reportArgumentType]
    return torch.from_numpy(model.fit_predict(means.numpy())).long()[dense]


def best(found: list[dict[str, Any]], family: str) -> dict[str, Any]:
    """The options with the best mean accuracy over a family's methods and seeds, and by method."""
    accuracies: dict[str, dict[str, list[float]]] = {}
    for row in (row for row in found if row["family"] == family):
        of_options = accuracies.setdefault(row["options"], {})
        of_options.setdefault(row["method"], []).append(row["accuracy"])
    means = {
        options: {method: float(np.mean(values)) for method, values in of_method.items()}
        for options, of_method in accuracies.items()
    }
    winner = max(means, key=lambda options: sum(means[options].values()))
    return {"options": json.loads(winner), "accuracy": means[winner]}


def main() -> None:
    """Reads the options and runs."""
    parser = argparse.ArgumentParser(description=Choose.__doc__)
    parser.add_argument("--public", type=Path, required=True)
    parser.add_argument("--output", type=Path, default=Choose.output)
    parser.add_argument("--seeds", type=int, default=Choose.seeds)
    parser.add_argument("--overwrite", action="store_true")
    Choose(**vars(parser.parse_args())).run()


if __name__ == "__main__":
    main()
