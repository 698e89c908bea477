"""The experiments by name: which lines they consist of."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

from embed import EmbeddingSet
from train_distributed.research.experiments.checkpoint import Work
from train_distributed.research.experiments.conditions import Conditions, ExperimentName
from train_distributed.research.experiments.convergence import convergence_work
from train_distributed.research.experiments.rivals import rival_work
from train_distributed.research.experiments.trials import Line, trials
from train_distributed.simulation.scenario import Scenario, held_out

MORE_DATA = 67  # Table 2 of the paper
OURS = {"ours": "discriminant", "ours, softmax heads": "softmax"}
PAPER_L2_REGS = {"softmax": (0.003, 0.01, 0.03, 0.1, 0.3), "svm": (0.01, 0.03, 0.1, 0.3)}
PAPER_RADII = (0.5, 1.0, 2.0, 3.0, 10.0)


def ours(partition: Scenario) -> Iterator[Line]:
    """The default of `run`, and blind averaging as `run` does it."""
    for label, method in OURS.items():
        yield Line(label=label, method=method, partition=partition)


def published(partition: Scenario) -> Iterator[Line]:
    """The paper's two methods on raw embeddings, their hyper-parameters searched per cell.

    Λ and R are in units of the clipped rows, whose norm is about 1: the published softmax Λ 1 … 30
    and R .1 … 1 at c = 34.854 are 8e-4 … .025 and 3.5 … 35 here, the SVM's Λ 10 … 200 and R .04 …
    .08 are .008 … .16 and 1.4 … 2.8; the search covers what is good on our embeddings. Every user
    finds the minimiser and projects it, in place of 150 or 500 epochs of projected SGD.
    """
    for method, name in (("softmax", "softmax"), ("svm", "SVM")):
        for l2_reg, radius in product(PAPER_L2_REGS[method], PAPER_RADII):
            yield Line(
                label=f"{name} as published",
                method=method,
                partition=partition,
                options={"l2_reg": l2_reg, "radius": radius, "bound": "paper"},
                published=True,
            )


def compared(partitions: Iterable[Scenario]) -> list[Line]:
    """Ours and the paper's on each partition."""
    return [line for where in partitions for make in (ours, published) for line in make(where)]


def frontier(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy against ε: the default of `run`, and the paper's two at their best per cell."""
    lines = compared(_placed(conditions, conditions.rows_per_user))
    return trials(lines, conditions, private, public)


def users(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """Accuracy against w with equal local sizes (Fig. 5), federated DP-SGD too (Opacus)."""
    rows = conditions.rows_per_user or _each(conditions, private)
    partitions = _placed(conditions, rows)
    federated = [Line(label="DP-FL", method="dp-fl", partition=where) for where in partitions]
    return trials([*compared(partitions), *federated], conditions, private, public)


def non_iid(conditions: Conditions, private: EmbeddingSet, public: EmbeddingSet) -> Work:
    """From IID to one class per user, with more data too, and by writer where users are named."""
    w = max(conditions.users)
    more = (MORE_DATA * w, _each(conditions, private))
    partitions = [
        Scenario(users=w),
        Scenario(users=w, scheme="dirichlet", concentration=1.0),
        Scenario(users=w, scheme="dirichlet", concentration=0.1),
        Scenario(users=w, scheme="one-class"),
        Scenario(users=w, scheme="one-class", stands_for=more),
    ]
    if private.users is not None:
        partitions.append(Scenario(users=None, scheme="by-writer"))
    return trials(compared(partitions), conditions, private, public)


def _placed(conditions: Conditions, rows: int | None) -> list[Scenario]:
    """A partition for each number of users and scheme, of so many rows a user."""
    return [
        Scenario(users=w, scheme=scheme, rows_per_user=rows)
        for w, scheme in product(conditions.users, conditions.schemes)
    ]


def _each(conditions: Conditions, private: EmbeddingSet) -> int:
    """Training rows for each of the largest number of users."""
    train, _ = held_out(private.labels, private.split, conditions.folds, 0)
    return len(train) // max(conditions.users)


EXPERIMENTS: dict[ExperimentName, Callable[..., Work]] = {
    "frontier": frontier,
    "users": users,
    "non-iid": non_iid,
    "rivals": rival_work,
    "convergence": convergence_work,
}
