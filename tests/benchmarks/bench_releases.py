"""Releases on embeddings: many kinds of pictures, public knowledge, and who adds the noise."""

import json
import math
import time
import zlib
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.guesses import ClassMeans, Sources, knowing, means_by_name
from embed.options import Knowledge
from pretrain.cli.provenance import provenance
from pretrain.datasets import TEST, TRAIN
from tests.benchmarks.common import DELTA, METHOD, Table, command_line, save, spread
from train_distributed import Privacy, release
from train_distributed.one_shot.class_prior import prior_shift
from train_distributed.one_shot.method import Fitted
from train_distributed.one_shot.metrics import BINS, ClassifierMetrics
from train_distributed.one_shot.model import probabilities
from train_distributed.one_shot.request import FederationSize, ReleaseRequest
from train_distributed.partition import split
from train_distributed.privacy.promise import SERVERS, NoiseBy
from train_distributed.simulation.shared_training import RowsInMemory, simulate

Rows = tuple[Tensor, Tensor]  # (n, d) and (n,) classes
PUBLIC_ROWS, MOST_ROWS, TEST_ROWS = 25_000, 50_000, 4000
FEDERATIONS = (
    (1000, 50, (0.05, 0.2, 1.2)),
    (100, 70, (0.3, 1.0, 3.0)),
    (50, 40, (1.0, 3.0, 8.0)),
    (170, 70, (8.0, 20.0)),  # hardly any noise
)
CELLS = [(users, rows, epsilon) for users, rows, each in FEDERATIONS for epsilon in each]
MEASURES = ("accuracy", "balanced", "ece", "ece_private")


def opened(private: Path, public: Path, **options: Any) -> tuple[EmbeddingSet, PublicTransform]:
    """A private set, and the transform that the public one gives."""
    return EmbeddingSet.open(private), PublicTransform.fit(EmbeddingSet.open(public), **options)


def places(rows: EmbeddingSet) -> tuple[np.ndarray, np.ndarray]:
    """Of training rows, and of test rows."""
    return np.flatnonzero(rows.split == TRAIN), np.flatnonzero(rows.split == TEST)


def transformed(rows: EmbeddingSet, transform: PublicTransform, at: np.ndarray) -> Rows:
    """The rows at these places."""
    return transform(rows.embeddings[at]), torch.from_numpy(rows.labels[at].astype(np.int64))


def request(
    transform: PublicTransform, sizes: Tensor, num_classes: int, privacy: Privacy, **more: Any
) -> ReleaseRequest:
    """A release with nothing but what is given; users hold so many rows."""
    given: dict[str, Any] = {"transform": transform, "options": more.pop("options", None) or {}}
    size = FederationSize(sizes=sizes, num_classes=num_classes, **more)
    return ReleaseRequest(embeddings=size, method=METHOD, privacy=privacy, **given)


def scored(
    asked: ReleaseRequest, held: RowsInMemory, tested: Tensor, draw: torch.Generator
) -> tuple[Tensor, Fitted]:
    """(n, K) float64 scores of the tested rows by a simulated release, and its model."""
    state = simulate(held, asked.built, asked.privacy, draw)
    fitted = state.fitted()
    return state.final_rows(tested).double() @ fitted.weights, fitted


def measured(
    asked: ReleaseRequest, sizes: Tensor, held: Rows, tested: Rows, seed: int
) -> tuple[float, ...]:
    """`MEASURES` of one release, whose users hold so many of these rows."""
    (x, y), draw = held, torch.Generator().manual_seed(seed)
    picked = torch.randperm(len(x), generator=draw)[: int(sizes.sum())]
    parts = split(y[picked], len(sizes), "iid", generator=draw)
    scores, fitted = scored(asked, RowsInMemory(x[picked], y[picked], parts), tested[0], draw)
    labels = tested[1]
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


def kinds(pairs: tuple[str, ...], seeds: int = 2, write: Path | None = None) -> None:
    """Defaults of `run` on pictures of many kinds.

    Each pair PRIVATE:PUBLIC names an embedding set, with test rows, and a labelled public one.
    Releases are simulated with nothing but ε, and tried on at most 4,000 test rows. The expected
    calibration error is that under equal classes, every class of the test rows weighing alike
    (`ece`), and that under the shares that the sum shows, of test rows as they are (`ece_private`).
    `pictures.py kinds` draws pictures that are no photographs.
    """
    started, table = time.process_time(), Table()
    for private, _, public in (pair.rpartition(":") for pair in pairs):
        rng, rows = np.random.default_rng(0), EmbeddingSet.open(private)
        shown = EmbeddingSet.open(public)
        chosen = np.sort(rng.permutation(len(shown))[:PUBLIC_ROWS])
        transform = PublicTransform.fit(shown.subset(chosen))
        train, test = (rng.permutation(part) for part in places(rows))
        held = transformed(rows, transform, np.sort(train[:MOST_ROWS]))
        tested = transformed(rows, transform, np.sort(test[:TEST_ROWS]))
        named = {"private": Path(private).name, "public": Path(public).name, "method": METHOD}
        for users, count, epsilon in CELLS:
            if users * count > len(train):
                continue
            sizes, privacy = torch.full((users,), count), Privacy(epsilon, DELTA)
            asked = request(transform, sizes, int(rows.labels.max()) + 1, privacy)
            each = [measured(asked, sizes, held, tested, seed) for seed in range(seeds)]
            found = 100 * np.array(each)
            place = {"users": users, "rows": count, "epsilon": epsilon}
            means = dict(zip(MEASURES, found.mean(0).round(2).tolist(), strict=True))
            more = {"each": found[:, 1].round(2).tolist(), "settings": asked.settings.options}
            table.add(named | place | means, **more)
    took = round(time.process_time() - started)
    made = {"seeds": seeds, "options": {}, "processor_seconds": took}
    save(write, made | {"lines": table.rows})


EACH = 50
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)
USERS = (10, 20, 50, 100, MANY := 1000)
DRAWN = (0.1, 0.4, 1.2)  # ε of the picture's panels
KNOWN = {"none": "nothing known", "names": "names of the classes"}
KNOWN |= {"20": "20 pictures a class", "names+20": "both"}


class Stage:
    """Private set, the raw coordinates of a transform, and what names say."""

    def __init__(self, private: EmbeddingSet, public: EmbeddingSet, sources: Sources) -> None:
        self.private, self.sources = private, sources
        self.transform = PublicTransform.fit(public)
        self.names = tuple(map(str, private.meta["class_names"]))
        self.tested = transformed(private, self.transform, places(private)[1])
        means = ClassMeans.of(public, self.transform, sources.classes)
        self.rule = sources.rule(self.transform, means)

    def rows(self, source: str, seed: int) -> tuple[EmbeddingSet | None, np.ndarray]:
        """Examples of a source, and the training rows that are left, in the users' order."""
        rng, labels = np.random.default_rng(seed), self.private.labels
        most = max((int(part) for part in source.split("+") if part.isdecimal()), default=0)
        order = rng.permutation(places(self.private)[0])
        shown = np.concatenate([order[labels[order] == k][:most] for k in range(len(self.names))])
        left = rng.permutation(np.setdiff1d(order, shown) if most else order)
        return (self.private.subset(np.sort(shown)) if most else None), left

    def knowing(self, source: str, shown: EmbeddingSet | None) -> PublicTransform:
        """The transform with this source's guesses; without, where it says nothing."""
        if source == "none":
            return self.transform
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
        return knowing(self.transform, self.names, rule, groups, examples)

    def cell(self, source: str, seed: int, users: Sequence[int]) -> list[dict[str, Any]]:
        """Accuracies of one source and seed, of all users and ε."""
        (shown, left), (tested, y) = self.rows(source, seed), self.tested
        transform, found = self.knowing(source, shown), []
        for count, epsilon in product(users, EPSILONS):
            promise, sizes = Privacy(epsilon, DELTA), torch.full((count,), EACH)
            asked = request(transform, sizes, len(self.names), promise)
            x, labels = transformed(self.private, self.transform, left[: count * EACH])
            held = RowsInMemory(x, labels, split(labels, count))
            draw = torch.Generator().manual_seed(zlib.crc32(f"{seed} {epsilon}".encode()))
            scores, fitted = scored(asked, held, tested, draw)
            metrics = ClassifierMetrics(self.names, len(y), fitted.temperature)
            metrics.add(scores, y.numpy())
            told = metrics.report()
            cell = {"source": source, "users": count, "epsilon": epsilon, "seed": seed}
            cell |= {"accuracy": told["accuracy"], "balanced": told["balanced_accuracy"]}
            found.append(cell | {"ece": told["expected_calibration_error"]})
        return found


def mean(cells: list[dict[str, Any]], *at: Any) -> float:
    """Accuracy in per cent over seeds, of a source, a number of users and an epsilon."""
    own = [c["accuracy"] for c in cells if (c["source"], c["users"], c["epsilon"]) == at]
    return 100 * float(np.mean(own))


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
                words = " or ".join(KNOWN.get(each, each) for each in sources)
                style = {"color": line.get_color(), "fontsize": 9, "textcoords": "offset points"}
                above = -14 if values[0] < 60 else 6
                panel.annotate(words, (numbers[0], values[0]), xytext=(0, above), **style)
        panel.set(xscale="log", title=f"ε = {epsilon:g}", xlabel="users, with 50 pictures each")
        panel.set_xticks(numbers, labels=[f"{users:,}" for users in numbers])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set(ylabel="test accuracy, %", ylim=(0, None))
    figure.suptitle("What is known of the classes before, and how many users take part")
    figure.savefig(path, dpi=120)


def knowledge(
    embeddings: Path,
    public: Path,
    write: Path,
    text_encoder: str | None = None,
    users: tuple[int, ...] = USERS,
    sources: tuple[str, ...] = ("none", "names", "shuffled", "5", "20", "names+20"),
    seeds: int = 4,
) -> None:
    """What public knowledge of the classes is worth: accuracy by users, epsilon and source.

    The discriminant as `run` releases it by default, with float noise. A source is none, names,
    shuffled (every class has another's name), numbers ("class_3"), digits ("3"), a number of
    examples a class, or names and examples. Examples are training rows that are taken out of the
    private set first, others for each seed. Users hold 50 rows each, half of them honest.
    """
    shown, private = EmbeddingSet.open(public), EmbeddingSet.open(embeddings)
    knowledge = Sources.of(Knowledge(text_encoder=text_encoder), shown)
    stage = Stage(private, shown, knowledge)
    at = product(sources, range(seeds))
    cells = [cell for source, seed in at for cell in stage.cell(source, seed, users)]
    draw(cells, write.with_suffix(".png"))
    table = Table()
    for count, source in product(users, sources):
        means = {f"{e:g}": round(mean(cells, source, count, e), 1) for e in EPSILONS}
        table.add({"users": count, "source": source} | means)
    arguments = {"embeddings": embeddings.name, "public": public.name, "users": users}
    arguments |= {"sources": sources, "seeds": seeds, "text_encoder": text_encoder}
    save(write, provenance() | {"arguments": arguments, "table": table.lines, "cells": cells})


def noise_by(
    embeddings: Path,
    public: Path,
    epsilons: tuple[float, ...] = (0.4, 1.2, 3.0),
    seeds: int = 3,
    write: Path | None = None,
) -> None:
    """Accuracy at equal ε where half-honest users add the noise, and where two servers do.

    Whole releases by `discriminant` with the transform of the public rule and discrete noise from
    the operating system; a seed decides who holds which rows, for both alike.
    """
    (private, transform), table = opened(embeddings, public), Table()
    labels = torch.from_numpy(private.labels[private.split == TRAIN])
    for epsilon in epsilons:
        found: dict[NoiseBy, list[float]] = {"users": [], "servers": []}
        stds: dict[NoiseBy, float] = {}
        for seed in range(seeds):
            draw = torch.Generator().manual_seed(seed)
            parts = split(labels, MANY, generator=draw)
            given: dict[str, Any] = {"transform": transform, "partition": parts}
            for by, accuracies in found.items():
                privacy = Privacy(epsilon, DELTA, noise_by=by)
                report = release(private, METHOD, privacy, noise="discrete", **given).report
                accuracies.append(100 * report["test_accuracy"])
                parties = MANY if by == "users" else SERVERS
                stds[by] = report["local_noise_std"] * math.sqrt(parties)
        less, deviation = spread(np.subtract(found["servers"], found["users"]))
        line = {"epsilon": epsilon, "servers less users": round(float(less), 2)}
        line["standard error of that"] = round(float(deviation) / math.sqrt(seeds), 2)
        means = {by: round(float(np.mean(each)), 2) for by, each in found.items()}
        more = {"mean accuracy": means, "noise in an entry of the scaled sum": stds}
        more["accuracies"] = {by: np.round(each, 2).tolist() for by, each in found.items()}
        table.add(line | {f"by {by}": mean for by, mean in means.items()}, **more)
    save(write, {"machine": provenance(), "users": MANY, "releases": table.rows})


def draw_predicted(rows: list[dict[str, Any]], path: Path) -> None:
    """Accuracies, and bytes that a user sends, against ε; a colour for each number of users."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, users in enumerate(dict.fromkeys(row["users"] for row in rows)):
        mine, color = [row for row in rows if row["users"] == users], f"C{number}"
        of = {name: np.array([row[name] for row in mine]) for name in mine[0]}
        x, mean = of["epsilon"] * 1.06**number, 100 * of["mean"]
        bars = np.abs(100 * np.stack([of["low"], of["high"]]) - mean)
        left.errorbar(x, mean, bars, fmt="_", capsize=4, color=color, label=f"{users:,} users")
        left.plot(x, 100 * of["reached"], "o", color=color)
        right.plot(x, of["bytes"] / 1000, "o-", color=color)
    left.set(ylabel="accuracy, %", title="predicted (bars: 80 %) and reached (dots)")
    right.set(ylabel="kB a user sends", title="cost", yscale="log")
    left.legend()
    for axes in (left, right):
        axes.set(xlabel="ε", xscale="log")
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def predicted(rehearsed: tuple[Path, ...], reached: Path, write: Path) -> None:
    """Accuracy that `rehearse` predicted beside what was reached, and what a user then sends."""
    got, table = dict[tuple[int, float], list[float]](), Table()
    for cell in json.loads(reached.read_text())["cells"]:
        if cell["source"] == "none":
            got.setdefault((cell["users"], cell["epsilon"]), []).append(cell["accuracy"])
    for report in (json.loads((each / "report.json").read_text()) for each in rehearsed):
        users = report["configuration"]["users"]
        for each in (p for p in report["predictions"] if p["kind"] == "private"):
            epsilon = each["epsilon"]
            mean = float(np.mean(got[users, epsilon]))
            row = {"users": users, "epsilon": epsilon, "reached": mean}
            row |= {name: each["accuracy"][name] for name in ("low", "mean", "high")}
            table.add(row | {"bytes": report["bytes_per_user"][f"{epsilon:g}"]})
    draw_predicted(table.rows, write.with_suffix(".png"))
    save(write, provenance() | {"rows": table.rows})


if __name__ == "__main__":
    command_line(kinds=kinds, knowledge=knowledge, noise_by=noise_by, predicted=predicted)
