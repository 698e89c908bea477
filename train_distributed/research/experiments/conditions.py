"""Conditions of an experiment."""

from dataclasses import dataclass
from typing import Literal

from pretrain import check
from train_distributed.privacy.promise import Privacy

ExperimentName = Literal[
    "frontier",
    "selection",
    "accuracy",
    "users",
    "groups",
    "central",
    "trusted",
    "non-iid",
    "user-level",
    "unequal",
    "cost",
    "rivals",
    "rounds",
    "convergence",
]
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)


@dataclass(frozen=True)
class Conditions:
    """Conditions of an experiment."""

    users: tuple[int, ...] = (1000,)
    """Numbers of users; experiments with a single number take the largest."""
    rows_per_user: int | None = None
    """Number of rows per user, drawn at random (default: all rows are spread; accuracy: both)."""
    schemes: tuple[Literal["iid", "one-class"], ...] = ("iid", "one-class")
    """Partitions of rows among users, where the experiment leaves them open."""
    epsilons: tuple[float, ...] = EPSILONS
    """Values of ε, one per column."""
    delta: float = 1e-5
    """Failure probability δ."""
    honest_fraction: float = 0.5
    """Share of users that are honest."""
    seeds: int = 5
    """Number of repetitions, each with its own partition and noise."""
    folds: int | None = None
    """Number of stratified folds to test on in turn (default: the set's own split)."""
    lineup: tuple[Literal["ours", "paper", "dp-fl"], ...] = ("ours", "paper")
    """Methods to compare, where the experiment leaves them open."""
    text_encoder: str | None = None
    """users: also what the names of the classes are worth, as in `run`."""
    examples: str | None = None
    """users: also what this public embedding set of the private classes is worth, as in `run`."""
    components: tuple[int, ...] = (32, 128)
    """Numbers of public directions for rivals, without the constant column."""
    tasks: int = 6
    """Number of public tasks that `select` simulates."""
    rounds: int = 0
    """Number of further rounds that `select` may choose instead of none (frontier, selection)."""

    def validate(self) -> None:
        """Raises ValueError for a number out of range."""
        check.at_least(1, seeds=self.seeds, tasks=self.tasks)
        check.at_least(1, **check.present(rows_per_user=self.rows_per_user))
        check.at_least(0, rounds=self.rounds)
        check.at_least(2, **check.present(folds=self.folds))
        for name in ("users", "schemes", "lineup", "components"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        check.at_least(1, users=min(self.users))
        if not self.epsilons:
            raise ValueError("epsilons must not be empty")
        for promise in self.promises:
            promise.validate()

    @property
    def promises(self) -> list[Privacy]:
        """One promise per ε."""
        return [Privacy(epsilon, self.delta, self.honest_fraction) for epsilon in self.epsilons]

    @property
    def most(self) -> int:
        """The largest number of users."""
        return max(self.users)

    @property
    def all_seeds(self) -> range:
        """A seed per repetition and fold."""
        return range(self.seeds * (self.folds or 1))
