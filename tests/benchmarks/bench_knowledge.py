"""What public knowledge of the classes is worth: accuracy by users, epsilon and source.

python tests/benchmarks/bench_knowledge.py --embeddings cifar10_lite0 --public tiny_lite0 \
    --text-encoder package --write knowledge.json

The discriminant as `run` releases it by default, with float noise. A source is none, names,
shuffled names (every class has another's), numbers ("class_3"), digits ("3"), a number of examples
a class, or names and examples. Examples are training rows that are taken out of the private set
first, others for each seed. Users hold 50 rows each, half of them honest.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure

from embed import EmbeddingSet, PublicTransform
from embed.guesses import ClassMeans, NameRule, Sources, knowing, means_by_name
from embed.options import Knowledge
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST, TRAIN
from tests.benchmarks.saving import save
from train_distributed import Privacy
from train_distributed.one_shot.metrics import BINS
from train_distributed.one_shot.model import probabilities
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.partition import split
from train_distributed.simulation.shared_training import RowsInMemory, released

METHOD, EACH, DELTA = "discriminant", 50, 1e-5
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)
USERS = (10, 20, 50, 100, 1000)
DRAWN = (0.1, 0.4, 1.2)  # ε of the picture's panels
KNOWN = {
    "none": "nothing known",
    "names": "names of the classes",
    "20": "20 pictures a class",
    "names+20": "both",
}


@dataclass(frozen=True)
class Stage:
    """Private set, the raw coordinates of a transform, and what names say."""

    private: EmbeddingSet
    public: EmbeddingSet
    transform: PublicTransform
    sources: Sources

    @property
    def names(self) -> tuple[str, ...]:
        """Classes of the private set."""
        return tuple(map(str, self.private.meta["class_names"]))

    @cached_property
    def tested(self) -> torch.Tensor:
        """Raw rows of the test split."""
        return self.transform(self.private.embeddings[self.private.split == TEST])

    @cached_property
    def rule(self) -> NameRule | None:
        """From names to class means."""
        means = ClassMeans.of(self.public, self.transform, self.sources.classes)
        return self.sources.rule(self.transform, means)

    def rows(self, source: str, seed: int) -> tuple[EmbeddingSet | None, np.ndarray]:
        """Examples of a source, and the training rows that are left, in the users' order."""
        train = np.flatnonzero(self.private.split == TRAIN)
        rng = np.random.default_rng(seed)
        most = max((int(part) for part in source.split("+") if part.isdecimal()), default=0)
        labels, order = self.private.labels, rng.permutation(train)
        shown = np.concatenate([order[labels[order] == k][:most] for k in range(len(self.names))])
        left = rng.permutation(np.setdiff1d(order, shown) if most else order)
        return (self.private.subset(np.sort(shown)) if most else None), left

    def knowing(self, source: str, shown: EmbeddingSet | None) -> PublicTransform:
        """The transform with this source's guesses; without, where it says nothing."""
        parts = set(source.split("+"))
        examples = None if shown is None else means_by_name(shown, self.transform, self.names)
        rule, groups = None, []
        odd = {"numbers": "class_{}", "digits": "{}"}
        if {"names", "shuffled", *odd} & parts:
            rule = self.rule
            form = next((odd[part] for part in parts if part in odd), "")
            said = [form.format(k) if form else name for k, name in enumerate(self.names)]
            groups = self.sources.vectors(said)
            groups = [*groups[1:], groups[0]] if "shuffled" in parts else groups
        if source == "none":
            return self.transform
        return knowing(self.transform, self.names, rule, groups, examples)

    def cell(self, source: str, seed: int, users: Sequence[int]) -> list[dict[str, Any]]:
        """Accuracies of one source and seed, of all users and ε."""
        shown, left = self.rows(source, seed)
        test = self.private.split == TEST
        y, found = self.private.labels[test], []
        for count, epsilon in product(users, EPSILONS):
            promise, classes = Privacy(epsilon, DELTA), len(self.names)
            sizes = torch.full((count,), EACH)
            method = ReleaseRequest(
                embeddings=FederationSize(sizes=sizes, num_classes=classes),
                method=METHOD,
                privacy=promise,
                transform=self.knowing(source, shown),
            ).built
            rows = left[: count * EACH]
            labels = torch.from_numpy(self.private.labels[rows].astype(np.int64))
            x = self.transform(self.private.embeddings[rows])
            held = RowsInMemory(x, labels, split(labels, count))

            def draw(number: int, size: int, epsilon: float = epsilon) -> torch.Tensor:
                words = f"{seed} {epsilon} {number}".encode()
                own = torch.Generator().manual_seed(zlib.crc32(words))
                return torch.randn(size, generator=own, dtype=torch.float64)

            state = released(method, None, held, held.sizes, promise, draw)
            fitted = state.fitted()
            scores = state.final_rows(self.tested).double() @ fitted.weights
            sure = probabilities(scores, fitted.temperature).numpy()
            hits = sure.argmax(1) == y
            shares = [hits[y == k].mean() for k in np.unique(y)]
            bins = np.ceil(sure.max(1) * BINS)
            gaps = [abs((hits - sure.max(1))[bins == b].sum()) for b in np.unique(bins)]
            cell = {"source": source, "users": count, "epsilon": epsilon, "seed": seed}
            cell |= {"accuracy": hits.mean(), "balanced": float(np.mean(shares))}
            found.append(cell | {"ece": float(sum(gaps) / len(y))})
        return found


def mean(cells: list[dict[str, Any]], source: str, users: int, epsilon: float) -> float:
    """Accuracy in per cent over seeds."""
    at = (source, users, epsilon)
    own = [c["accuracy"] for c in cells if (c["source"], c["users"], c["epsilon"]) == at]
    return 100 * float(np.mean(own))


def table(cells: list[dict[str, Any]]) -> str:
    """Mean accuracies, by users and source."""
    lines = [f"{'users':>6} {'source':16}" + "".join(f"{e:>7g}" for e in EPSILONS)]
    keys = list(dict.fromkeys((cell["users"], cell["source"]) for cell in cells))
    for users, source in sorted(keys, key=lambda key: key[0]):
        means = (mean(cells, source, users, epsilon) for epsilon in EPSILONS)
        lines.append(f"{users:>6} {source:16}" + "".join(f"{each:7.1f}" for each in means))
    return "\n".join(lines)


def draw(cells: list[dict[str, Any]], path: Path) -> None:
    """Accuracy against the number of users, a panel for each of three ε, a line for each source.

    Lines that nowhere differ by a point are one, with both names.
    """
    found: dict[tuple[str, ...], dict[tuple[float, int], float]] = {}
    numbers = sorted({cell["users"] for cell in cells})
    for source in dict.fromkeys(cell["source"] for cell in cells):
        own = {(e, users): mean(cells, source, users, e) for e, users in product(DRAWN, numbers)}
        twin = next((k for k, v in found.items() if max(abs(own[c] - v[c]) for c in own) < 1), ())
        found[(*twin, source)] = found.pop(twin, own)
    figure = Figure(figsize=(11, 3.8), layout="tight")
    panels = figure.subplots(1, len(DRAWN), sharey=True)
    for epsilon, panel in zip(DRAWN, panels, strict=True):
        for sources, accuracies in found.items():
            values = [accuracies[epsilon, users] for users in numbers]
            (line,) = panel.plot(numbers, values, marker="o")
            if epsilon == DRAWN[0]:
                below = values[0] < 60
                panel.annotate(
                    " or ".join(KNOWN.get(each, each) for each in sources),
                    (numbers[0], values[0]),
                    xytext=(0, -14 if below else 6),
                    textcoords="offset points",
                    color=line.get_color(),
                    fontsize=9,
                )
        panel.set(xscale="log", title=f"ε = {epsilon:g}", xlabel="users, with 50 pictures each")
        panel.set_xticks(numbers, labels=[f"{users:,}" for users in numbers])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy, %", ylim=(0, None))
    figure.suptitle("What is known of the classes before, and how many users take part")
    figure.savefig(path, dpi=120)


def main(
    embeddings: Path,
    public: Path,
    write: Path,
    text_encoder: str | None = None,
    users: tuple[int, ...] = USERS,
    sources: tuple[str, ...] = ("none", "names", "shuffled", "5", "20", "names+20"),
    seeds: int = 4,
) -> None:
    """Prints the table; writes all cells."""
    shown, private = EmbeddingSet.open(public), EmbeddingSet.open(embeddings)
    knowledge = Sources.of(Knowledge(text_encoder=text_encoder), shown)
    stage, cells = Stage(private, shown, PublicTransform.fit(shown), knowledge), []
    for source, seed in product(sources, range(seeds)):
        cells += stage.cell(source, seed, users)
    arguments = {"embeddings": embeddings.name, "public": public.name, "users": users}
    arguments |= {"sources": sources, "seeds": seeds, "text_encoder": text_encoder}
    result = {**provenance(), "arguments": arguments, "table": table(cells).split("\n")}
    save(write, result | {"cells": cells})
    draw(cells, write.with_suffix(".png"))
    print(table(cells))


if __name__ == "__main__":
    tyro.cli(main)
