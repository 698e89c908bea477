"""Defaults of `run` on pictures of many kinds, beside the best directions of a search.

python tests/benchmarks/bench_kinds.py --pairs letters:tiny_simclr shapes:tiny_simclr --write FILE

Each pair names a private embedding set, with test rows, and a labelled public one. The discriminant
is released with what its rule chooses and with every kind and number of directions of a grid;
balanced accuracy on at most 4,000 test rows. The search looks at them, as a release may not.
`tests/benchmarks/kinds.py` draws pictures that are no photographs.
"""

import argparse
import json
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.compress import Compression
from embed.directions import Directions
from embed.store import TEST, TRAIN
from embed.transform_options import TransformOptions
from train_distributed import Privacy
from train_distributed.one_shot.defaults import PublicFacts
from train_distributed.one_shot.registry import build_method
from train_distributed.partition import split
from train_distributed.simulation.shared_training import RowsInMemory, simulate

METHOD, DELTA, COORDINATES = "discriminant", 1e-5, 640
PUBLIC_ROWS, TEST_ROWS = 25_000, 4000
FEDERATIONS = (
    (1000, 50, (0.05, 0.2, 1.2)),
    (100, 70, (0.3, 1.0, 3.0)),
    (50, 40, (1.0, 3.0, 8.0)),
)
WIDTHS, KINDS = (16, 64, 128, 256, 512), get_args(Directions)
Cell = tuple[int, int, float]  # w, n, ε


class Kind:
    """One kind of pictures: a private set and a public one, as public coordinates."""

    def __init__(self, private: Path, public: Path) -> None:
        rng = np.random.default_rng(0)
        given = EmbeddingSet.open(public)
        given = given.subset(np.sort(rng.permutation(len(given))[:PUBLIC_ROWS]))
        self._compression = Compression.fit(given, min(COORDINATES, given.dim))
        self._public = self._compression.apply(given)
        rows = EmbeddingSet.open(private)
        train, test = (rng.permutation(np.flatnonzero(rows.split == s)) for s in (TRAIN, TEST))
        most = max(w * n for w, n, _ in FEDERATIONS)
        self._train = self._compression.apply(rows.subset(np.sort(train[:most])))
        self._test = self._compression.apply(rows.subset(np.sort(test[:TEST_ROWS])))
        self.num_classes = int(rows.labels.max()) + 1
        self.federations = [each for each in FEDERATIONS if each[0] * each[1] <= len(train)]

    def rule(self, users: int, rows: int, epsilon: float) -> TransformOptions:
        """Transform that `run` takes when none is given."""
        facts = PublicFacts(
            sizes=torch.full((users,), rows),
            num_classes=self.num_classes,
            privacy=Privacy(epsilon, DELTA),
        )
        return facts.transform(METHOD, TransformOptions(), len(self._compression.mean))

    def accuracies(
        self, options: TransformOptions, cells: Sequence[Cell], seeds: int
    ) -> dict[Cell, float]:
        """Balanced accuracy in per cent of releases with one transform, mean over seeds."""
        transform = self._compression.fit_transform(self._public, **options.arguments())
        x, y = self._rows(transform, self._train)
        held, labels = self._rows(transform, self._test)
        method = build_method(METHOD, transform, self.num_classes, {})
        found = dict.fromkeys(cells, 0.0)
        for cell, seed in product(cells, range(seeds)):
            users, rows, epsilon = cell
            draw = torch.Generator().manual_seed(seed)
            picked = torch.randperm(len(x), generator=draw)[: users * rows]
            partition = split(y[picked], users, "iid", generator=draw)
            memory = RowsInMemory(x[picked], y[picked], partition)
            (weights,) = simulate(memory, method, [Privacy(epsilon, DELTA)], draw)
            hits = ((held.double() @ weights).argmax(1) == labels).double()
            recalls = [hits[labels == k].mean() for k in labels.unique()]
            found[cell] += 100 * float(torch.stack(recalls).mean()) / seeds
        return found

    @staticmethod
    def _rows(transform: PublicTransform, rows: EmbeddingSet) -> tuple[Tensor, Tensor]:
        return transform(rows.embeddings), torch.from_numpy(np.array(rows.labels))


def measured(private: Path, public: Path, seeds: int) -> list[dict[str, Any]]:
    """One line per federation and ε: accuracy by the rule, of every candidate, and the best."""
    kind = Kind(private, public)
    cells = [(w, n, e) for w, n, epsilons in kind.federations for e in epsilons]
    grid = {
        f"{name} {q}": kind.accuracies(TransformOptions(q, name), cells, seeds)
        for name, q in product(KINDS, WIDTHS)
    }
    rules = {cell: kind.rule(*cell) for cell in cells}
    reached: dict[Cell, float] = {}
    for options in dict.fromkeys(rules.values()):
        alike = [cell for cell in cells if rules[cell] == options]
        reached |= kind.accuracies(options, alike, seeds)
    lines = []
    for cell in cells:
        chosen, rule = rules[cell], reached[cell]
        candidates = {name: round(found[cell], 2) for name, found in grid.items()}
        best = max(candidates, key=lambda name: candidates[name])
        lines.append(
            {
                "private": private.name,
                "public": public.name,
                "classes": kind.num_classes,
                **dict(zip(("users", "rows", "epsilon"), cell, strict=True)),
                "rule": f"{chosen.directions} {chosen.components}",
                "by_rule": round(rule, 2),
                "best": best,
                "loss": round(candidates[best] - rule, 2),
                "candidates": candidates,
            }
        )
        print(
            f"{private.name:16}{cell[0]:6} x {cell[1]:<4}{cell[2]:5g}  {lines[-1]['rule']:15}"
            f"{rule:6.1f}  best {candidates[best]:5.1f} {best:17} loss {lines[-1]['loss']:5.1f}",
            flush=True,
        )
    return lines


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Defaults on pictures of many kinds")
    parser.add_argument("--pairs", nargs="+", required=True, help="PRIVATE:PUBLIC")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    started, lines = time.process_time(), []
    for pair in arguments.pairs:
        private, _, public = pair.rpartition(":")
        lines += measured(Path(private), Path(public), arguments.seeds)
    losses = [line["loss"] for line in lines]
    print(f"loss {np.mean(losses):.2f} on average, {max(losses):.2f} at most")
    if arguments.write is not None:
        made = {"seeds": arguments.seeds, "processor_seconds": round(time.process_time() - started)}
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(json.dumps({**made, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
