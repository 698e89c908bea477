"""Conditions of an experiment."""

from dataclasses import dataclass
from typing import Literal

from pretrain import check
from train_distributed.privacy.promise import Privacy

ExperimentName = Literal["frontier", "users", "non-iid", "rivals", "convergence"]
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.6, 1.2, 3.0)


@dataclass(frozen=True)
class Conditions:
    """Conditions of an experiment."""

    users: tuple[int, ...] = (1000,)
    """Numbers of users; non-iid takes the largest."""
    rows_per_user: int | None = None
    """Number of rows per user, drawn at random (default: all rows are spread)."""
    schemes: tuple[Literal["iid", "one-class"], ...] = ("iid", "one-class")
    """Partitions of rows among users (frontier, users)."""
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
    components: tuple[int, ...] = (32, 128)
    """Numbers of public directions for rivals, without the constant column."""

    def validate(self) -> None:
        """Raises ValueError for a number out of range."""
        check.at_least(1, seeds=self.seeds)
        check.at_least(1, **check.drop_none(rows_per_user=self.rows_per_user))
        check.at_least(2, **check.drop_none(folds=self.folds))
        for name in ("users", "schemes", "components", "epsilons"):
            if not getattr(self, name):
                raise ValueError(f"{name} must not be empty")
        check.at_least(1, users=min(self.users))
        for promise in self.promises:
            promise.validate()

    @property
    def promises(self) -> list[Privacy]:
        """One promise per ε."""
        return [Privacy(epsilon, self.delta, self.honest_fraction) for epsilon in self.epsilons]

    @property
    def all_seeds(self) -> range:
        """A seed per repetition and fold."""
        return range(self.seeds * (self.folds or 1))
