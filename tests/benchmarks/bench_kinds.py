"""Defaults of `run` on pictures of many kinds.

python tests/benchmarks/bench_kinds.py --pairs letters:tiny_simclr shapes:tiny_simclr --write FILE

Each pair names a private embedding set, with test rows, and a labelled public one. Releases are
simulated with nothing but ε, and tried on at most 4,000 test rows. The expected calibration error
is that under equal classes, every class of the test rows weighing alike (`ece`), and that under the
shares that the sum shows, of test rows as they are (`ece_private`).
`tests/benchmarks/kinds.py` draws pictures that are no photographs.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from pretrain.datasets import TEST, TRAIN
from tests.benchmarks.saving import save
from train_distributed import Privacy
from train_distributed.one_shot.class_prior import prior_shift
from train_distributed.one_shot.method import Fitted
from train_distributed.one_shot.metrics import BINS
from train_distributed.one_shot.model import probabilities
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.partition import split
from train_distributed.simulation.shared_training import RowsInMemory, simulate

DELTA = 1e-5
PUBLIC_ROWS, TEST_ROWS = 25_000, 4000
FEDERATIONS = (
    (1000, 50, (0.05, 0.2, 1.2)),
    (100, 70, (0.3, 1.0, 3.0)),
    (50, 40, (1.0, 3.0, 8.0)),
    (170, 70, (8.0, 20.0)),  # hardly any noise
)
Cell = tuple[int, int, float]  # w, n, ε
MEASURES = ("accuracy", "balanced", "ece", "ece_private")


class Kind:
    """One kind of pictures: a private set and a public one, as raw coordinates."""

    def __init__(
        self,
        private: Path,
        public: Path,
        users: Sequence[int] | None = None,
        classes: Sequence[int] = (),
    ) -> None:
        rng = np.random.default_rng(0)
        shown = EmbeddingSet.open(public)
        shown = shown.subset(np.sort(rng.permutation(len(shown))[:PUBLIC_ROWS]))
        self.transform = PublicTransform.fit(shown)
        rows = EmbeddingSet.open(private)
        if classes:
            rows = rows.subset(np.isin(rows.labels, classes))
            rows = replace(rows, labels=np.searchsorted(sorted(classes), rows.labels))
        train, test = (rng.permutation(np.flatnonzero(rows.split == s)) for s in (TRAIN, TEST))
        tried = [each for each in FEDERATIONS if each[0] in (users or each[:1])]
        self.federations = [each for each in tried if each[0] * each[1] <= len(train)]
        most = max(w * n for w, n, _ in tried)
        self._train, self._test = (
            self._rows(rows.subset(np.sort(part))) for part in (train[:most], test[:TEST_ROWS])
        )
        self.num_classes = int(rows.labels.max()) + 1

    def _rows(self, rows: EmbeddingSet) -> tuple[Tensor, Tensor]:
        return self.transform(rows.embeddings), torch.from_numpy(np.array(rows.labels))

    def request(self, cell: Cell, method: str, given: Mapping[str, Any]) -> ReleaseRequest:
        """A release with nothing but ε, and what is given."""
        users, rows, epsilon = cell
        sizes = torch.full((users,), rows)
        return ReleaseRequest(
            embeddings=FederationSize(sizes=sizes, num_classes=self.num_classes),
            method=method,
            privacy=Privacy(epsilon, DELTA),
            transform=self.transform,
            options=given,
        )

    def measured(self, method: str, cell: Cell, given: Mapping[str, Any], seeds: int) -> np.ndarray:
        """(seeds, 4) `MEASURES` in per cent."""
        users, rows, epsilon = cell
        (x, y), (held, labels) = self._train, self._test
        built = self.request(cell, method, given).built
        found = []
        for seed in range(seeds):
            draw = torch.Generator().manual_seed(seed)
            picked = torch.randperm(len(x), generator=draw)[: users * rows]
            partition = split(y[picked], users, "iid", generator=draw)
            memory = RowsInMemory(x[picked], y[picked], partition)
            state = simulate(memory, built, Privacy(epsilon, DELTA), draw)
            fitted = state.fitted()
            scores = state.final_rows(held).double() @ fitted.weights
            found.append(_measures(scores, fitted, labels))
        return 100 * np.array(found)


def _measures(scores: Tensor, fitted: Fitted, labels: Tensor) -> tuple[float, ...]:
    """Accuracy, balanced accuracy, and expected calibration error under both priors."""
    counts = torch.bincount(labels).double()
    alike = (1 / counts)[labels] / (counts > 0).sum()
    hits = (scores.argmax(1) == labels).double()
    errors = [_calibration(probabilities(scores, fitted.temperature), labels, alike)]
    if fitted.class_shares is not None and fitted.prior is not None:
        shares, temperature = fitted.class_shares, fitted.temperature
        scores = scores + prior_shift("private", fitted.prior, shares, temperature)
        each = torch.full_like(alike, 1 / len(labels))
        errors.append(_calibration(probabilities(scores, temperature), labels, each))
    return float(hits.mean()), float(alike @ hits), errors[0], errors[-1]


def _calibration(sure: Tensor, labels: Tensor, weights: Tensor) -> float:
    """Expected calibration error of (n, K) probabilities of rows with these (n,) weights."""
    confidence, predicted = sure.max(1)
    gaps = weights * ((predicted == labels).double() - confidence)
    bins = (confidence * BINS).ceil().long() - 1
    return float(torch.stack([gaps[bins == b].sum().abs() for b in bins.unique()]).sum())


def main(
    pairs: tuple[str, ...],
    methods: tuple[str, ...] = ("discriminant",),
    users: tuple[int, ...] | None = None,
    classes: tuple[int, ...] = (),
    seeds: int = 2,
    options: str = "{}",
    write: Path | None = None,
) -> None:
    """Pairs PRIVATE:PUBLIC by methods, in federations of so many users (default: all).

    Options are JSON; with classes, no other private rows are looked at.
    """
    started, lines, given = time.process_time(), [], json.loads(options)
    for pair in pairs:
        private, _, public = pair.rpartition(":")
        kind = Kind(Path(private), Path(public), users, classes)
        cells = [(w, n, e) for w, n, epsilons in kind.federations for e in epsilons]
        for method, cell in product(methods, cells):
            found = kind.measured(method, cell, given, seeds)
            means = dict(zip(MEASURES, found.mean(0).round(2).tolist(), strict=True))
            settings = kind.request(cell, method, given).settings.options
            place = dict(zip(("users", "rows", "epsilon"), cell, strict=True))
            named = {"private": Path(private).name, "public": Path(public).name, "method": method}
            each = {"each": found[:, 1].round(2).tolist()}
            lines.append(named | place | means | each | {"settings": settings})
            print(
                f"{Path(private).name:16}{method:13}{cell[0]:6} x {cell[1]:<4}{cell[2]:5g}  "
                f"q {settings.get('components')}".ljust(60)
                + "  ".join(f"{name} {value:5.1f}" for name, value in means.items()),
                flush=True,
            )
    made = {"seeds": seeds, "options": given}
    made["processor_seconds"] = round(time.process_time() - started)
    save(write, made | {"lines": lines})


if __name__ == "__main__":
    tyro.cli(main)
