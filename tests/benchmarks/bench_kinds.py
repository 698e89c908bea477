"""Defaults of `run` on pictures of many kinds, beside the best directions of a search.

python tests/benchmarks/bench_kinds.py --pairs letters:tiny_simclr shapes:tiny_simclr --write FILE

Each pair names a private embedding set, with test rows, and a labelled public one. The discriminant
is released with what its rule chooses and with every kind and number of directions of a grid;
balanced accuracy on at most 4,000 test rows. The search looks at them, as a release may not. The
best of many candidates is partly luck: it is found with one half of the seeds, its loss is what the
rule is below it with the other half, averaged over both ways round (`apart`). Of a head
(`--method softmax`) the grid is one of Λ, on the rule's own directions. Classes of unequal size
want `--prior equal`, where balanced accuracy is what counts.
`tests/benchmarks/kinds.py` draws pictures that are no photographs.
"""

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
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
from train_distributed.commands.configuration import RunConfig
from train_distributed.one_shot.defaults import PublicFacts, rule_of
from train_distributed.one_shot.registry import build_method
from train_distributed.partition import split
from train_distributed.simulation.shared_training import RowsInMemory, simulate

DELTA, COORDINATES = 1e-5, 640
PUBLIC_ROWS, TEST_ROWS = 25_000, 4000
FEDERATIONS = (
    (1000, 50, (0.05, 0.2, 1.2)),
    (100, 70, (0.3, 1.0, 3.0)),
    (50, 40, (1.0, 3.0, 8.0)),
    (170, 70, (8.0, 20.0)),  # hardly any noise
)
WIDTHS, KINDS = (16, 64, 128, 256, 512), get_args(Directions)
REGULARISERS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
Cell = tuple[int, int, float]  # w, n, ε
Rows = tuple[Tensor, Tensor]  # (n, q + 1) features, (n,) labels
Settings = tuple[TransformOptions, tuple[tuple[str, Any], ...]]


class Kind:
    """One kind of pictures: a private set and a public one, as public coordinates."""

    def __init__(
        self,
        private: Path,
        public: Path,
        users: Sequence[int] | None = None,
        given: Mapping[str, Any] | None = None,
        classes: Sequence[int] = (),
    ) -> None:
        self.given = given or {}
        rng = np.random.default_rng(0)
        shown = EmbeddingSet.open(public)
        shown = shown.subset(np.sort(rng.permutation(len(shown))[:PUBLIC_ROWS]))
        self._compression = Compression.fit(shown, min(COORDINATES, shown.dim))
        self._public = self._compression.apply(shown)
        rows = EmbeddingSet.open(private)
        if classes:
            rows = rows.subset(np.isin(rows.labels, classes))
            rows = replace(rows, labels=np.searchsorted(sorted(classes), rows.labels))
        train, test = (rng.permutation(np.flatnonzero(rows.split == s)) for s in (TRAIN, TEST))
        tried = [each for each in FEDERATIONS if each[0] in (users or each[:1])]
        most = max(w * n for w, n, _ in tried)
        self._train = self._compression.apply(rows.subset(np.sort(train[:most])))
        self._test = self._compression.apply(rows.subset(np.sort(test[:TEST_ROWS])))
        self._transformed = lru_cache(maxsize=1)(self._latest)
        self.num_classes = int(rows.labels.max()) + 1
        self.federations = [each for each in tried if each[0] * each[1] <= len(train)]

    def facts(self, cell: Cell) -> PublicFacts:
        """Public numbers of a federation."""
        users, rows, epsilon = cell
        sizes, privacy = torch.full((users,), rows), Privacy(epsilon, DELTA)
        return PublicFacts(sizes=sizes, num_classes=self.num_classes, privacy=privacy)

    def rule(self, cell: Cell, method: str) -> Settings:
        """Transform and options that `run` takes where few options or none are given."""
        facts = self.facts(cell)
        width = len(self._compression.mean)
        plain = RunConfig(method, TransformOptions(), dict(self.given), facts.privacy)
        found = plain.filled_in(facts, (), width=width)
        return found.transform_options, tuple(facts.options(method, found.options).items())

    def accuracies(
        self, method: str, settings: Settings, cells: Sequence[Cell], seeds: int
    ) -> dict[Cell, np.ndarray]:
        """Balanced accuracy in per cent of releases with one transform: (seeds,) of every cell."""
        options, own = settings
        transform, (x, y), (held, labels) = self._transformed(options)
        built = build_method(method, transform, self.num_classes, dict(own))
        found = {cell: np.zeros(seeds) for cell in cells}
        for (users, rows), seed in product(
            dict.fromkeys((w, n) for w, n, _ in cells), range(seeds)
        ):
            epsilons = [e for w, n, e in cells if (w, n) == (users, rows)]
            draw = torch.Generator().manual_seed(seed)
            picked = torch.randperm(len(x), generator=draw)[: users * rows]
            partition = split(y[picked], users, "iid", generator=draw)
            memory = RowsInMemory(x[picked], y[picked], partition)
            promises = [Privacy(epsilon, DELTA) for epsilon in epsilons]
            released = simulate(memory, built, promises, draw)
            for epsilon, course in zip(epsilons, released, strict=True):
                scores = course.moved(held).double() @ course.fitted().weights
                hits = (scores.argmax(1) == labels).double()
                recalls = [hits[labels == k].mean() for k in labels.unique()]
                found[users, rows, epsilon][seed] = 100 * float(torch.stack(recalls).mean())
        return found

    def _latest(self, options: TransformOptions) -> tuple[PublicTransform, Rows, Rows]:
        transform = self._compression.fit_transform(self._public, **options.arguments())
        return transform, self._rows(transform, self._train), self._rows(transform, self._test)

    @staticmethod
    def _rows(transform: PublicTransform, rows: EmbeddingSet) -> Rows:
        return transform(rows.embeddings), torch.from_numpy(np.array(rows.labels))


def loss_apart(own: np.ndarray, candidates: Sequence[np.ndarray]) -> float:
    """Points below the best candidate, found with one half of the seeds, with the other half.

    All (seeds,) accuracies of the same draws; the mean of both ways round.
    """
    tried = np.stack(candidates)
    halves = np.arange(len(own)) % 2 == 0
    losses = [
        float((tried[tried[:, shown].mean(1).argmax(), ~shown] - own[~shown]).mean())
        for shown in (halves, ~halves)
    ]
    return float(np.mean(losses))


def searched_settings(rules: dict[Cell, Settings], method: str) -> dict[str, dict[Cell, Settings]]:
    """Candidates by name: of a head every Λ, otherwise every kind and number of directions."""
    if rule_of(method).l2_reg is not None:
        return {
            f"Λ = {value}": {c: (t, (*own, ("l2_reg", value))) for c, (t, own) in rules.items()}
            for value in REGULARISERS
        }
    return {
        f"{name} {q}": {
            cell: (TransformOptions(q, name), tuple((k, v) for k, v in own if k != "keep"))
            for cell, (_, own) in rules.items()
        }
        for name, q in product(KINDS, WIDTHS)
    }


def measured(
    private: Path,
    public: Path,
    method: str,
    users: Sequence[int] | None,
    seeds: int,
    searched: bool = True,
    given: Mapping[str, Any] | None = None,
    classes: Sequence[int] = (),
) -> list[dict[str, Any]]:
    """One line per federation and ε: accuracy by the rule, of every candidate, and the best."""
    kind = Kind(private, public, users, given, classes)
    cells = [(w, n, e) for w, n, epsilons in kind.federations for e in epsilons]
    rules = {cell: kind.rule(cell, method) for cell in cells}
    grid = searched_settings(rules, method) if searched else {}

    def reached(settings: dict[Cell, Settings]) -> dict[Cell, np.ndarray]:
        found: dict[Cell, np.ndarray] = {}
        for each in dict.fromkeys(settings.values()):
            alike = [cell for cell in cells if settings[cell] == each]
            found |= kind.accuracies(method, each, alike, seeds)
        return found

    tried = {name: reached(settings) for name, settings in grid.items()}
    by_rule = reached(rules)
    lines = []
    for cell in cells:
        (chosen, own), rule = rules[cell], float(by_rule[cell].mean())
        candidates = {name: round(float(found[cell].mean()), 2) for name, found in tried.items()}
        halved = seeds > 1 and bool(tried)
        apart = loss_apart(by_rule[cell], [f[cell] for f in tried.values()]) if halved else None
        candidates = candidates or {"of the rule alone": round(rule, 2)}
        best = max(candidates, key=lambda name: candidates[name])
        lines.append(
            {
                "private": private.name,
                "public": public.name,
                "classes": kind.num_classes,
                **dict(zip(("users", "rows", "epsilon"), cell, strict=True)),
                "rule": f"{chosen.directions} {chosen.components}",
                **dict(own),
                "by_rule": round(rule, 2),
                "best": best,
                "loss": round(candidates[best] - rule, 2),
                "apart": None if apart is None else round(apart, 2),
                "candidates": candidates,
            }
        )
        print(
            f"{private.name:16}{cell[0]:6} x {cell[1]:<4}{cell[2]:5g}  {lines[-1]['rule']:15}"
            f"{rule:6.1f}  best {candidates[best]:5.1f} {best:17} loss {lines[-1]['loss']:5.1f}"
            + ("" if apart is None else f" apart {apart:5.1f}"),
            flush=True,
        )
    return lines


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Defaults on pictures of many kinds")
    parser.add_argument("--pairs", nargs="+", required=True, help="PRIVATE:PUBLIC")
    parser.add_argument("--method", default="discriminant")
    parser.add_argument("--users", nargs="+", type=int, help="federations (default: all)")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rule-alone", action="store_true", help="no search beside the rule")
    parser.add_argument("--centre", choices=("private", "public"), help="not the rule's own")
    parser.add_argument("--prior", choices=("equal", "private"), help="not the rule's own")
    parser.add_argument("--alpha", type=float, help="not the rule's own")
    parser.add_argument("--classes", nargs="+", type=int, default=(), help="no other private rows")
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    named = {name: getattr(arguments, name) for name in ("centre", "prior", "alpha")}
    given = {name: value for name, value in named.items() if value is not None}
    started, lines = time.process_time(), []
    for pair in arguments.pairs:
        private, _, public = pair.rpartition(":")
        lines += measured(
            Path(private),
            Path(public),
            arguments.method,
            arguments.users,
            arguments.seeds,
            not arguments.rule_alone,
            given,
            arguments.classes,
        )
    for word in ("loss", "apart"):
        losses = [line[word] for line in lines if line[word] is not None]
        if losses:
            print(f"{word} {np.mean(losses):.2f} on average, {max(losses):.2f} at most")
    if arguments.write is not None:
        made = {
            "method": arguments.method,
            "seeds": arguments.seeds,
            "processor_seconds": round(time.process_time() - started),
        }
        arguments.write.parent.mkdir(parents=True, exist_ok=True)
        arguments.write.write_text(json.dumps({**made, "lines": lines}, indent=1) + "\n")


if __name__ == "__main__":
    main()
