"""`report.json`, the report of a release, as a type: it is checked, read and written here."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import msgspec

from pretrain.cli.json_text import read_object

VERSION = 1  # size: code of the format; one without a version is read as this one
NOT_PRIVATE = ("not private", "inf")  # how files write an infinite privacy loss
MEASURED = (
    *("test_accuracy", "majority_baseline", "test_accuracy_per_class", "test_metrics"),
    "test_findings",
)

T = TypeVar("T")
Positive = Annotated[float, msgspec.Meta(gt=0)]
AtLeastZero = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class ClassMetrics:
    """Metrics of one class; None where they are undefined."""

    rows: Count
    precision: float | None
    recall: float | None


@dataclass(frozen=True, kw_only=True)
class PriorMetrics:
    """Metrics under one prior of the classes."""

    accuracy: float
    balanced_accuracy: float


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """Metrics on labelled rows, as `metrics.ClassifierMetrics.report` writes them."""

    rows: Annotated[int, msgspec.Meta(ge=1)]
    accuracy: float
    majority_baseline: float
    majority_class: str
    balanced_accuracy: float
    macro_f1: float
    auroc: float | None
    auroc_of: str
    expected_calibration_error: float
    per_class: dict[str, ClassMetrics]
    warnings: list[str]
    confusion: list[list[Count]] | None = None  # by label and predicted class
    by_prior: dict[str, PriorMetrics] | None = None  # None: the model has one prior alone


@dataclass(frozen=True, kw_only=True)
class LedgerNote:
    """Entry of a release in its ledger, and the total of all entries up to it."""

    file: str
    entry: str
    epsilon_total: float
    delta_total: float
    unit: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Report(Mapping[str, Any]):
    """Report of a release: `report.epsilon` is typed, `report["epsilon"]` is as in the file.

    The fields are what this project reads. Where a file leaves one out, its default promises
    nothing. As a mapping the report has every key of the file, known or not, in the file's order;
    `dict(report)` is ready for JSON.
    """

    written: dict[str, Any] = field(default_factory=dict, repr=False)
    report_version: Annotated[int, msgspec.Meta(ge=1, le=VERSION)] = VERSION

    # the promise
    private: bool = False
    epsilon: Positive = math.inf
    delta: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 1.0
    neighbouring: str = ""
    privacy_curve: str | None = None  # "gaussian": δ is known at every ε
    noise_multiplier: AtLeastZero = 0.0
    compositions: int = 1
    log10_zeta: float = -math.inf
    sensitivity: float | None = None
    zero_out_sensitivity: float | None = None
    zero_out_epsilon: float | None = None
    epsilon_asked_for: Positive | None = None
    epsilon_if_all_others_collude: float | None = None
    epsilon_per_iteration: float | None = None
    epsilon_learning: float | None = None
    epsilon_verification: float | None = None
    epsilon_composed: float | None = None
    epsilon_composed_pure: float | None = None
    epsilon_of_all_sessions: float | None = None
    suitable_for_release: bool = False
    unsuitable_because: list[str] = field(default_factory=list)
    ledger: LedgerNote | str | None = None

    # users and rows
    users: Count = 0
    survivors: Count | None = None
    honest_users: Count | None = None
    honest_fraction: float | None = None
    noise_by: str = "users"
    honest_servers: Count | None = None
    noise_servers: Count | None = None
    min_survivors: Count | None = None
    rows: Count | None = None
    public_rows: Count | None = None
    public_transform: str | None = None
    private_rows_compared: Count | None = None
    shared_rows: Count | None = None

    # method and protocol
    method: str | None = None
    noise: str | None = None
    user_clip: float | None = None
    prior: str | None = None  # "equal", "private" or "given"
    class_prior: dict[str, float] | None = None
    other_priors: str | None = None  # why the model has none; None: it has
    known_before: list[str] | None = None  # of the classes, from public sources; None: nothing
    believed: dict[str, float] | None = None  # probability of every guess, given the noised sum
    rounds: Count = 1
    share_per_round: list[float] | None = None
    common_share: float | None = None  # of rows' squared length, that of their mean; None: unknown
    secure_sum: str | None = None
    who_sees_what: str | None = None
    holds_against: str | None = None
    bytes_per_user: float | None = None
    bits_per_user: float | None = None
    federation: str | None = None
    session: str | None = None
    missing: dict[str, str] = field(default_factory=dict)

    # the model
    encoding: dict[str, Any] | None = None
    probabilities: str | None = None
    test_accuracy: float | None = None
    majority_baseline: float | None = None
    test_accuracy_per_class: dict[str, float] | None = None
    test_metrics: Metrics | None = None
    test_findings: dict[str, Any] | None = None  # of a model of several findings a picture
    configuration: dict[str, Any] | None = None
    versions: dict[str, str] | None = None

    @classmethod
    def of(cls, written: Mapping[str, Any]) -> Self:
        """Report of these keys; raises ValueError for a known key with a value of another kind."""
        kept = {"report_version": VERSION, **written}
        return converted(kept | {"written": kept}, cls, "report must be what a release writes")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Reads a report; raises ValueError naming a file that is missing or no report."""
        found = read_object(path)
        try:
            return cls.of(found)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def write(self, path: Path) -> None:
        """Writes the file, keys in their order."""
        path.write_text(json.dumps(self.written, indent=2, allow_nan=False) + "\n")

    @property
    def learned_shares(self) -> dict[str, float] | None:
        """Class shares counted in the noised sum; None: the model assumes another prior."""
        return self.class_prior if self.prior == "private" else None

    def need(self, *names: str) -> None:
        """Raises ValueError unless the file has all of these keys."""
        if missing := [name for name in names if name not in self]:
            raise ValueError(f"report must be what a release writes, got one without {missing[0]}")

    def with_reason(self, reason: str) -> Self:
        """Report with one more reason why the model is unsuitable for release."""
        why = [*self.unsuitable_because, reason]
        return self | {"suitable_for_release": False, "unsuitable_because": why}

    def without(self, *names: str) -> Self:
        """Report without these keys."""
        return type(self).of({name: v for name, v in self.written.items() if name not in names})

    def __or__(self, more: Mapping[str, Any]) -> Self:
        """Report with keys added or replaced."""
        return type(self).of({**self.written, **more})

    def __getitem__(self, name: str) -> Any:
        return self.written[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.written)

    def __len__(self) -> int:
        return len(self.written)


def converted(written: Mapping[str, Any], kind: type[T], rule: str) -> T:
    """The dataclass of this kind, from JSON; keys that it lacks are left out.

    Raises ValueError, a sentence that `rule` begins: a key missing, or a value of another kind.
    """
    known = {name: _number(name, value) for name, value in written.items()}
    try:
        return msgspec.convert(known, kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{rule}, got: {error}") from error


def _number(name: str, value: Any) -> Any:
    """Infinity for its words in files; a Python float for a numpy float."""
    if name == "ledger" and isinstance(value, dict):
        return {key: _number(key, each) for key, each in value.items()}
    if isinstance(value, float):
        return float(value)
    return math.inf if name.startswith("epsilon") and value in NOT_PRIVATE else value
