"""All learners on the same public features: one-shot sums, ADMM and Charter at one total ε."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import product
from typing import IO, Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from pretrain.datasets import TEST, TRAIN
from train_distributed import partition
from train_distributed.one_shot.registry import METHODS, build_method
from train_distributed.privacy.promise import Privacy
from train_distributed.research.experiments.checkpoint import Cells, Work
from train_distributed.research.experiments.conditions import Conditions
from train_distributed.research.experiments.figures import text_table
from train_distributed.research.rivals.common import UserRows
from train_distributed.research.rivals.learn import ManyRoundsOptions, learn_rows
from train_distributed.research.rivals.options import OPTIONS, CharterOptions
from train_distributed.simulation.plan import MethodConfig
from train_distributed.simulation.runner import accuracies, largest_share
from train_distributed.simulation.shared_training import RowsInMemory, simulate

BESIDE = {"balanced": "balanced accuracy", "majority": "always the largest class"}
# The options' defaults and the constants here were chosen by hand on the test accuracy of one seed
# at 32 features and 10 users: the rows of ADMM and Charter are a little optimistic, the others are
# not tuned.
BARE_CHARTER = {"half_width": 3.0, "gradient_clip": 0.3, "rounds_per_feature": 1.0}
LEARNERS = (
    MethodConfig("discriminant", "discriminant"),
    *(MethodConfig(name, name, options={"l2_reg": 1.0}) for name in ("softmax", "svm", "logistic")),
    MethodConfig("ADMM, no noise", "admm-dual"),
    MethodConfig("ADMM, dual perturbation", "admm-dual"),
    MethodConfig("ADMM, primal perturbation", "admm-primal"),
    MethodConfig("Charter, no noise", "charter", options=BARE_CHARTER),
    MethodConfig("Charter", "charter"),
    MethodConfig("Charter, secure sum", "charter-sum"),
)
WITHOUT_NOISE = ("ADMM, no noise", "Charter, no noise")  # labels


@dataclass(frozen=True, eq=False)
class LearnerBenchmark:
    """All users' rows in float64, and what tests them."""

    transform: PublicTransform
    held: RowsInMemory
    test: tuple[Tensor, Tensor]
    num_classes: int
    seed: int

    def measure(self, learner: MethodConfig, promise: Privacy) -> dict[str, Any]:
        """Accuracy and cost of a learner; ε composed, None without noise."""
        learn = self._one_sum if learner.method in METHODS else self._many_rounds
        began = time.perf_counter()
        try:
            weights, costs = learn(
                learner, promise, torch.Generator().manual_seed(1000 + self.seed)
            )
        except ValueError as error:
            return {"not_possible": str(error)}
        ((reached, balanced),) = accuracies(*self.test, iter([weights]))
        found = {"accuracy": reached, "balanced": balanced, "majority": largest_share(self.test[1])}
        return {**found, **costs, "seconds": time.perf_counter() - began}

    def _one_sum(
        self, learner: MethodConfig, promise: Privacy, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Any]]:
        """A statistic or blind averaging, by one secure sum."""
        method = build_method(learner.method, self.transform, self.num_classes, learner.options)
        state = simulate(self.held, method, promise, generator)
        spent = promise.epsilon if promise.private else None
        costs = {"epsilon": spent, "rounds": 1, "bits_per_user": 64 * method.statistic.dimension}
        return state.fitted().weights, costs | {"server_sees": "the server sees one sum"}

    def _many_rounds(
        self, learner: MethodConfig, promise: Privacy, generator: torch.Generator
    ) -> tuple[Tensor, dict[str, Any]]:
        """ADMM or Charter, all of whose messages together spend ε."""
        held, clip_norm = self.held, self.transform.clip_norm
        rows = UserRows(held.x, held.y, held.partition, self.num_classes, clip_norm)
        options = affordable(OPTIONS[learner.method](**learner.options), rows)
        weights, costs = learn_rows(
            rows, learner.method, promise, options, generator, measure_risk=False
        )
        kept = {"epsilon": costs.get("epsilon_composed"), "rounds": costs["rounds"]}
        kept |= {"bits_per_user": costs["bits_per_user"], "server_sees": costs["who_sees_what"]}
        return weights, kept | {"options": asdict(options)}


def affordable(options: ManyRoundsOptions, rows: UserRows) -> ManyRoundsOptions:
    """Charter with as many cut rounds as its smallest client's rows allow, where it wants more."""
    if not isinstance(options, CharterOptions):
        return options
    most = int(rows.users.counts.min()) // 3
    return replace(options, cut_rounds=min(options.rounds(rows.x.shape[1]), most))


def work(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """One sum against ADMM and Charter, for each number of features and of users."""
    bare = [replace(conditions.promises[0], epsilon=math.inf)]
    labels, classes = torch.tensor(private.labels), len(private.meta["class_names"])
    train, test = private.split == TRAIN, private.split == TEST

    @lru_cache(1)
    def features(components: int) -> tuple[PublicTransform, Tensor]:
        transform = PublicTransform.fit(public, components=components)
        return transform, transform(private.embeddings, dtype=torch.float64)

    @lru_cache(1)
    def benchmark(components: int, users: int, seed: int) -> LearnerBenchmark:
        transform, x = features(components)
        draw = torch.Generator().manual_seed(seed)
        split = partition.split(labels[train], users, generator=draw)
        held = RowsInMemory(x[train], labels[train], split)
        return LearnerBenchmark(transform, held, (x[test], labels[test]), classes, seed)

    def trial(cell: dict[str, Any], learner: MethodConfig, promise: Privacy) -> Cells:
        stage = benchmark(cell["features"], cell["users"], cell["seed"])
        return [cell | stage.measure(learner, promise)]

    trials = {}
    places = product(conditions.components, conditions.users, range(conditions.seeds))
    for (q, users, seed), learner in product(places, LEARNERS):
        for promise in bare if learner.label in WITHOUT_NOISE else conditions.promises:
            cell = {"features": q, "users": users, "seed": seed, "learner": learner.label}
            cell |= {"promised": promise.epsilon if promise.private else None}
            trials[str(cell)] = partial(trial, cell, learner, promise)
    return Work.of(trials)


def tell(result: Mapping[str, Any]) -> str:
    """A line per learner and setting, mean and sample deviation over seeds."""
    rows = result["cells"]
    shown = []
    for group in _settings(rows):
        first, (mean, std) = group[0], _accuracy(group)
        spread = f"{mean:.2f} ± {std:.2f}" if len(group) > 1 else f"{mean:.2f}"
        epsilon = math.inf if first["epsilon"] is None else first["epsilon"]
        shown.append(
            {"learner": first["learner"], "features": str(first["features"])}
            | {"users": str(first["users"]), "accuracy / %": spread}
            | {words: _mean(group, name) for name, words in BESIDE.items()}
            | {"epsilon": f"{epsilon:.3g}", "rounds": str(first["rounds"])}
            | {"bits per user": f"{first['bits_per_user']:,.0f}"}
            | {"seconds": f"{np.median([row['seconds'] for row in group]):.1f}"}
            | {"who sees what": first["server_sees"]}
        )
    lines = [text_table(shown)] if shown else []
    failed = {
        f"{row['features']} features, {row['users']} users, {row['learner']}": row["not_possible"]
        for row in rows
        if "not_possible" in row
    }
    return "\n".join([*lines, *(f"{name}: not possible, {why}" for name, why in failed.items())])


def draw(result: Mapping[str, Any], file: IO[bytes]) -> None:
    """A panel per numbers of features and users, a bar per learner."""
    panels: dict[tuple[int, int], list[list[dict[str, Any]]]] = {}
    for group in _settings(result["cells"]):
        panels.setdefault((group[0]["features"], group[0]["users"]), []).append(group)
    figure = Figure(figsize=(3.4 * len(panels) + 2, 4.5), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, ((features, users), groups) in zip(axes, panels.items(), strict=True):
        mean, std = zip(*map(_accuracy, groups), strict=True)
        names = [_label(group[0]) for group in groups]
        axis.barh(names, mean, xerr=np.nan_to_num(std))
        for (name, words), mark in zip(BESIDE.items(), ("k|", "k:"), strict=True):
            values = [_values(group, name).mean() for group in groups]  # NaN is not drawn
            axis.plot(values, names, mark, label=words)
        axis.set(xlabel="test accuracy / %", title=f"{features} features, {users:,} users")
        axis.grid(alpha=0.3)
    axes[0].invert_yaxis()
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(file, dpi=150)


def _settings(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Rows that differ by their seed alone, together."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "not_possible" not in row:
            key = tuple(row[name] for name in ("features", "users", "learner", "promised"))
            groups.setdefault(key, []).append(row)
    return list(groups.values())


def _accuracy(group: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Mean and sample deviation in per cent."""
    scores = 100 * np.array([row["accuracy"] for row in group])
    return scores.mean(), scores.std(ddof=1) if len(scores) > 1 else math.nan


def _values(group: Sequence[dict[str, Any]], name: str) -> np.ndarray:
    """Per cent of each row; NaN in results of an older version."""
    return 100 * np.array([row.get(name, math.nan) for row in group], float)


def _mean(group: Sequence[dict[str, Any]], name: str) -> str:
    found = float(_values(group, name).mean())
    return "unknown" if math.isnan(found) else f"{found:.2f}"


def _label(row: dict[str, Any]) -> str:
    """Label of a bar; a learner without noise has a name that says so."""
    return row["learner"] if row["promised"] is None else f"{row['learner']}, ε {row['promised']:g}"
