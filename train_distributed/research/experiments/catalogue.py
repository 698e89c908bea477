"""The experiments by name: what they compare, and how their results are shown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import IO, Any, Literal, Protocol

from embed import EmbeddingSet
from pretrain.cli.output import new_file
from train_distributed.research.experiments import convergence, rivals
from train_distributed.research.experiments.checkpoint import Work
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.experiments.frontier_figure import draw_frontier
from train_distributed.research.experiments.summary import table
from train_distributed.research.experiments.trials import OURS, PUBLISHED, trials
from train_distributed.simulation.plan import MethodConfig, Result, Scenario, held_out

MORE_DATA = 67  # Table 2 of the paper
PAPER_L2_REGS = {"softmax": (0.003, 0.01, 0.03, 0.1, 0.3), "svm": (0.01, 0.03, 0.1, 0.3)}
PAPER_RADII = (0.5, 1.0, 2.0, 3.0, 10.0)


class Experiment(Protocol):
    """What is played, and how the content of results.json becomes a table and a figure."""

    def work(self, conditions: Conditions, private: Any, public: Any) -> Work:
        """The jobs, on embedding sets or on None."""
        ...

    def tell(self, result: Mapping[str, Any]) -> str:
        """The table."""
        ...

    def draw(self, result: Mapping[str, Any], file: IO[bytes]) -> None:
        """Writes the figure as PNG."""
        ...


@dataclass(frozen=True)
class Comparison:
    """Methods on partitions, every line at every ε and seed."""

    partitions: Callable[[Conditions, EmbeddingSet], list[Scenario]]
    panel: str  # field of a cell that has a panel for each of its values
    lines: tuple[str, ...]  # fields that have a line for each of theirs
    x: Literal["epsilon", "users"] = "epsilon"
    federated: bool = False  # with federated DP-SGD, too (Opacus)

    def work(self, conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
        """Ours and the paper's on each partition."""
        partitions = self.partitions(conditions, private)
        dp_fl = [MethodConfig("DP-FL", "dp-fl", OURS)] if self.federated else []
        settings = [*ours(), *published(), *dp_fl]
        return trials(settings, partitions, conditions, private, public)

    def tell(self, result: Mapping[str, Any]) -> str:
        """Accuracy by panel and line, a column per value of x."""
        return table(_cells(result), (self.panel, *self.lines), self.x)

    def draw(self, result: Mapping[str, Any], file: IO[bytes]) -> None:
        """Accuracy against x."""
        used = result["configuration"]
        users = ", ".join(f"{users:,}" for users in used["users"])
        folds = f" x {used['folds']} folds" if used["folds"] else ""
        data = Path(str(result["embeddings"].get("data", ""))).name
        shown = f"{data}, δ = {used['delta']:g}, {used['seeds']} seeds{folds}"
        draw_frontier(
            _cells(result),
            file,
            title=f"Accuracy of one model of {users} users ({shown})",
            chance=1 / int(result["num_classes"]),
            panel=self.panel,
            lines=self.lines,
            x=self.x,
        )


def ours() -> list[MethodConfig]:
    """The default of `run`, and blind averaging as `run` does it."""
    labels = {"ours": "discriminant", "ours, softmax heads": "softmax"}
    return [MethodConfig(label, method, OURS) for label, method in labels.items()]


def published() -> list[MethodConfig]:
    """The paper's two methods on raw embeddings, their hyper-parameters searched per cell.

    Λ and R are in units of the clipped rows, whose norm is about 1: the published softmax Λ 1 … 30
    and R .1 … 1 at c = 34.854 are 8e-4 … .025 and 3.5 … 35 here, the SVM's Λ 10 … 200 and R .04 …
    .08 are .008 … .16 and 1.4 … 2.8; the search covers what is good on our embeddings. Every user
    finds the minimiser and projects it, in place of 150 or 500 epochs of projected SGD.
    """
    return [
        MethodConfig(
            f"{name} as published",
            method,
            PUBLISHED,
            {"l2_reg": l2_reg, "radius": radius, "bound": "paper"},
        )
        for method, name in (("softmax", "softmax"), ("svm", "SVM"))
        for l2_reg, radius in product(PAPER_L2_REGS[method], PAPER_RADII)
    ]


def as_asked(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """A partition for each number of users and scheme, of so many rows a user."""
    return _placed(conditions, conditions.rows_per_user)


def equal_sizes(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """The same with equal local sizes, whatever the number of users (Fig. 5)."""
    return _placed(conditions, conditions.rows_per_user or _each(conditions, private))


def to_one_class(conditions: Conditions, private: EmbeddingSet) -> list[Scenario]:
    """From IID to one class per user, with more data too, and by writer where users are named."""
    w = max(conditions.users)
    partitions = [
        Scenario(users=w),
        Scenario(users=w, scheme="dirichlet", concentration=1.0),
        Scenario(users=w, scheme="dirichlet", concentration=0.1),
        Scenario(users=w, scheme="one-class"),
        Scenario(
            users=w, scheme="one-class", stands_for=(MORE_DATA * w, _each(conditions, private))
        ),
    ]
    by_writer = [Scenario(users=None, scheme="by-writer")]
    return partitions + (by_writer if private.users is not None else [])


def _placed(conditions: Conditions, rows: int | None) -> list[Scenario]:
    return [
        Scenario(users=w, scheme=scheme, rows_per_user=rows)
        for w, scheme in product(conditions.users, conditions.schemes)
    ]


def _each(conditions: Conditions, private: EmbeddingSet) -> int:
    """Training rows for each of the largest number of users."""
    train, _ = held_out(private.labels, private.split, conditions.folds, 0)
    return len(train) // max(conditions.users)


def _cells(result: Mapping[str, Any]) -> list[Result]:
    return [Result(**cell) for cell in result["cells"]]


EXPERIMENTS: dict[ExperimentName, Experiment] = {
    "frontier": Comparison(as_asked, "scheme", ("label", "users")),
    "users": Comparison(equal_sizes, "epsilon", ("label", "scheme"), "users", federated=True),
    "non-iid": Comparison(to_one_class, "label", ("scheme",)),
    "rivals": rivals,
    "convergence": convergence,
}


def tell(result: Mapping[str, Any]) -> str:
    """The table of a sweep's result, the content of results.json."""
    return EXPERIMENTS[result["experiment"]].tell(result)


def draw(result: Mapping[str, Any], path: Path) -> None:
    """Writes the PNG of a sweep's result, whole or not at all."""
    with new_file(path) as partial, partial.open("wb") as file:
        EXPERIMENTS[result["experiment"]].draw(result, file)
