r"""All learners on the same public features: one-shot sums, ADMM and Charter at one total ε.

python -m train_distributed.research.experiments.rivals \
    --embeddings DIR --public DIR --output results/learners
"""

import csv
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor
from tqdm import tqdm

from embed import EmbeddingSet, PublicTransform
from embed.fit import refuse_leak
from pretrain.cli.command import run_command
from pretrain.cli.output import new_directory, refuse_existing
from pretrain.cli.provenance import provenance
from train_distributed import partition
from train_distributed.one_shot.methods import build_method
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy
from train_distributed.research.baselines import multi_round
from train_distributed.simulation.runner import accuracy
from train_distributed.simulation.shared_training import RowsInMemory, simulate

ONE_SHOT = ("class-sums", "least-squares", "softmax", "svm", "logistic")
CONSTANT = 0.5  # the constant column beside features of norm 1
# The options' defaults and these constants were chosen by hand on the test accuracy of one seed at
# 32 features and 10 users: the rows of ADMM and Charter are a little optimistic, the others are not
# tuned.
WITHOUT_NOISE: dict[str, dict[str, Any]] = {
    "admm-dual": {},
    "charter": {"half_width": 3.0, "gradient_clip": 0.3, "rounds_per_feature": 1.0},
}


@dataclass(frozen=True, eq=False)
class Trial:
    """Rows of all users, how they are spread, and what tests them."""

    transform: PublicTransform
    x: Tensor  # (N, q + 1) float64
    y: Tensor  # (N,) int64
    test: tuple[Tensor, Tensor]
    users: Partition
    num_classes: int
    epsilon: float
    delta: float
    seed: int

    def generator(self) -> torch.Generator:
        """Of the noise."""
        return torch.Generator().manual_seed(1000 + self.seed)


@dataclass(frozen=True)
class Outcome:
    """What one learner reached and cost."""

    accuracy: float
    epsilon: float  # composed, at the setting's δ
    rounds: int
    bits_per_user: float
    server_sees: str


def one_shot(trial: Trial, name: str) -> Outcome:
    """A statistic or blind averaging, by one secure sum with half of the users honest."""
    method = build_method(name, trial.transform, trial.num_classes, {})
    held = RowsInMemory(trial.x, trial.y, trial.users)
    promise = Privacy(trial.epsilon, trial.delta)
    (weights,) = simulate(held, method, [promise], trial.generator())
    (reached,) = accuracy(*trial.test, iter([weights]))
    return Outcome(reached, trial.epsilon, 1, 64 * method.dimension, "the server sees one sum")


def many_rounds(trial: Trial, method: str) -> Outcome:
    """ADMM or Charter, all of whose messages together spend ε."""
    return _many_rounds(trial, method, Privacy(trial.epsilon, trial.delta), {})


def without_noise(trial: Trial, method: str) -> Outcome:
    """The same without noise."""
    promise = Privacy(math.inf, trial.delta)
    return _many_rounds(trial, method, promise, WITHOUT_NOISE[method])


def _many_rounds(trial: Trial, method: str, promise: Privacy, options: dict[str, Any]) -> Outcome:
    rows = multi_round.Rows(
        trial.x, trial.y, trial.users, trial.num_classes, trial.transform.clip_norm
    )
    weights, costs = multi_round.learn_rows(
        rows,
        method,
        promise,
        _affordable(multi_round.method_options(method, options), rows),
        trial.generator(),
        measure_risk=False,
    )
    (reached,) = accuracy(*trial.test, iter([weights]))
    spent = costs.get("epsilon_composed", math.inf)
    return Outcome(reached, spent, costs["rounds"], costs["bits_per_user"], costs["who_sees_what"])


def _affordable(options: multi_round.Options, rows: multi_round.Rows) -> multi_round.Options:
    """Charter with as many cut rounds as its smallest client's rows allow, where it wants more."""
    if not isinstance(options, multi_round.CharterOptions):
        return options
    most = int(rows.users.counts.min()) // 3
    return replace(options, cut_rounds=min(options.rounds(rows.x.shape[1]), most))


RIVALS: dict[str, tuple[Callable[[Trial, str], Outcome], str]] = {
    **{name: (one_shot, name) for name in ONE_SHOT},
    "ADMM, no noise": (without_noise, "admm-dual"),
    "ADMM, dual perturbation": (many_rounds, "admm-dual"),
    "ADMM, primal perturbation": (many_rounds, "admm-primal"),
    "Charter, no noise": (without_noise, "charter"),
    "Charter": (many_rounds, "charter"),
    "Charter, secure sum": (many_rounds, "charter-sum"),
}


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Every learner x number of features x number of users, at one total privacy."""

    embeddings: Path
    public: Path
    output: Path = Path("results/learners")
    components: tuple[int, ...] = (32, 128)
    users: tuple[int, ...] = (10, 1000)
    epsilon: float = 1.2
    delta: float = 1e-5
    seeds: int = 3
    overwrite: bool = False

    def run(self) -> None:
        """Writes table.csv, table.txt and report.json; prints the table."""
        refuse_existing(self.output, overwrite=self.overwrite)
        private, public = EmbeddingSet.open(self.embeddings), EmbeddingSet.open(self.public)
        private.need_labels()
        refuse_leak(public, private)
        rows: list[dict[str, Any]] = []
        left_out: dict[str, str] = {}
        trials = list(self._trials(private, public))
        for trial in tqdm(trials, unit="setting", disable=None):
            for name, (learner, variant) in RIVALS.items():
                began = time.perf_counter()
                try:
                    outcome = learner(trial, variant)
                except ValueError as error:
                    left_out[f"{_place(trial)}, {name}"] = str(error)
                    continue
                rows.append(
                    {
                        "features": trial.x.shape[1] - 1,
                        "users": trial.users.users,
                        "learner": name,
                        "seed": trial.seed,
                        **asdict(outcome),
                        "seconds": time.perf_counter() - began,
                    }
                )
        table = tabulate(rows) + "".join(f"{k}: not possible, {v}\n" for k, v in left_out.items())
        report = {
            "configuration": self._configuration(),
            **provenance(),
            "admm": asdict(multi_round.AdmmOptions()),
            "charter": asdict(multi_round.CharterOptions()),
            "without_noise": WITHOUT_NOISE,
        }
        with new_directory(self.output, overwrite=self.overwrite) as directory:
            with (directory / "table.csv").open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]))
                writer.writeheader()
                writer.writerows(rows)
            (directory / "table.txt").write_text(table)
            (directory / "report.json").write_text(json.dumps(report, indent=1))
        print(table, end="")

    def _trials(self, private: EmbeddingSet, public: EmbeddingSet) -> Iterator[Trial]:
        train, test = private.split == 0, private.split == 1
        labels = torch.tensor(np.asarray(private.labels))
        for components in self.components:
            transform = PublicTransform.fit(
                public,
                components=components,
                clip_norm=math.sqrt(1 + CONSTANT**2),
                constant=CONSTANT,
            )
            x = transform(private.embeddings, dtype=torch.float64)
            for users in self.users:
                for seed in range(self.seeds):
                    draw = torch.Generator().manual_seed(seed)
                    yield Trial(
                        transform=transform,
                        x=x[train],
                        y=labels[train],
                        test=(x[test], labels[test]),
                        users=partition.split(labels[train], users, generator=draw),
                        num_classes=int(labels.max()) + 1,
                        epsilon=self.epsilon,
                        delta=self.delta,
                        seed=seed,
                    )

    def _configuration(self) -> dict[str, Any]:
        places = {name: getattr(self, name).name for name in ("embeddings", "public", "output")}
        return asdict(self) | places


def _place(trial: Trial) -> str:
    return f"{trial.x.shape[1] - 1} features, {trial.users.users} users"


def tabulate(rows: list[dict[str, Any]]) -> str:
    """One line per learner and setting, mean and sample deviation over seeds."""
    groups: dict[tuple[int, int, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["features"], row["users"], row["learner"]), []).append(row)
    lines = [
        f"{'features':>8} {'users':>5} {'learner':26} {'accuracy / %':>13} {'epsilon':>8} "
        f"{'rounds':>6} {'bits per user':>13} {'seconds':>8}  who sees what"
    ]
    for (features, users, learner), group in groups.items():
        scores = 100 * np.array([row["accuracy"] for row in group])
        spread = scores.std(ddof=1) if len(scores) > 1 else math.nan
        first = group[0]
        lines.append(
            f"{features:8} {users:5} {learner:26} {scores.mean():6.2f} ± {spread:4.2f} "
            f"{first['epsilon']:8.3g} {first['rounds']:6} {first['bits_per_user']:13,.0f} "
            f"{np.median([row['seconds'] for row in group]):8.1f}  {first['server_sees']}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(run_command(lambda: tyro.cli(Comparison)))
