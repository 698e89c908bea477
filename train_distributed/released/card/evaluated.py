"""Report of a private evaluation, `evaluation.json`, as a card reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from train_distributed.one_shot.report_file import converted
from train_distributed.released.card.numbers import percent, percent_range


@dataclass(frozen=True, kw_only=True)
class EvaluatedShare:
    """A share of rows and its interval."""

    estimate: float | None  # None: too few rows
    low: float
    high: float

    @property
    def value(self) -> str:
        """The share in words."""
        return "too few rows" if self.estimate is None else percent(self.estimate)

    @property
    def interval(self) -> str:
        """The interval in words."""
        return percent_range(self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Promise and findings of a private evaluation."""

    private: bool
    epsilon: float
    delta: float
    neighbouring: str
    users: int
    rows: int
    sampling: str
    confidence_level: float
    accuracy: EvaluatedShare
    recall: dict[str, EvaluatedShare]
    suitable_for_release: bool
    balanced_accuracy: EvaluatedShare | None = None
    expected_calibration_error: EvaluatedShare | None = None
    unsuitable_because: list[str] = field(default_factory=list)
    with_the_training: str | None = None

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Evaluation from what `evaluate` wrote; raises ValueError for a missing or wrong key."""
        return converted(written, cls, "evaluation must be what `evaluate` writes")
