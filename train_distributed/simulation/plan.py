"""A grid to compare, as values: methods x promises x partitions x seeds; the best results."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from train_distributed.one_shot.registry import METHODS
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.shared_training import CLIP, TRAINED

TIE = 0.002  # of accuracy
NEAR = 0.015  # of accuracy on public tasks, by which what suits other kinds may be behind
SUBMITTED = ("sums", "components", "class_noise")  # options that say which sums there are
TOGETHER = ("clip", "noise")  # options of descents that are trained at once


@dataclass(frozen=True)
class MethodConfig:
    """A method with everything that is chosen before private data is seen."""

    label: str
    method: str
    transform: str = "default"  # which of the transforms that are at hand
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def training(self) -> str:
        """Key of the training: configurations with equal keys share one, whatever else differs.

        Examples:
            >>> one, other = (MethodConfig("a", "softmax", options={"radius": r}) for r in (1, 2))
            >>> one.training == other.training  # an exact head is projected after training
            True
        """
        statistics = sums_rows(self.method)
        exact = self.options.get("solver", "exact") == "exact"
        seen = dict(self.options)
        if statistics:
            seen = {name: value for name, value in seen.items() if name in SUBMITTED}
        elif exact:
            unseen = (*TRAINED, *TOGETHER)
            seen = {name: value for name, value in seen.items() if name not in unseen}
        clipped = ", users' clip" if CLIP in self.options else ""
        words = ", ".join(f"{name}={value}" for name, value in sorted(seen.items()))
        return f"{self.method}({words}) on {self.transform}{clipped}"


@dataclass(frozen=True)
class Result:
    """One released model's accuracy on the test rows."""

    label: str
    method: str
    scheme: str
    epsilon: float | None  # None: without noise
    seed: int
    accuracy: float
    options: Mapping[str, Any]
    transform: str
    users: int = 0  # that held rows, whatever the scenario stands for
    rows: int = 0  # that they held
    delta: float | None = None
    balanced: float | None = None  # mean accuracy of the classes; None: not measured
    majority: float | None = None  # share of the largest class of the test rows; None: likewise
    # "equal" and "private", each with accuracy and balanced_accuracy; None: it has one prior alone
    by_prior: Mapping[str, Mapping[str, float]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON takes them."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Grid of trials. One training serves a trial: a scenario, a seed, settings, every ε."""

    settings: Sequence[MethodConfig]
    scenarios: Sequence[Scenario]
    promises: Sequence[Privacy]
    seeds: Sequence[int]
    num_classes: int
    folds: int | None = None  # None: the predefined split; else see `scenario.held_out`

    def validate(self) -> None:
        """Raises ValueError for an empty list or a promise that cannot be kept."""
        if not (self.seeds and self.scenarios and self.promises and self.settings):
            raise ValueError("settings, scenarios, promises and seeds must not be empty")
        for promise in self.promises:
            promise.validate()

    def trials(self) -> list["Trial"]:
        """All trials, those on one transform and of one partition together."""
        families: dict[str, dict[str, list[MethodConfig]]] = {}
        for setting in self.settings:
            of_transform = families.setdefault(setting.transform, {})
            of_transform.setdefault(setting.training, []).append(setting)
        return [
            Trial(tuple(family), scenario, seed)
            for of_transform in families.values()
            for scenario, seed in product(self.scenarios, self.seeds)
            for family in of_transform.values()
        ]


@dataclass(frozen=True)
class Trial:
    """Settings that one training serves, in one scenario, with one seed."""

    family: tuple[MethodConfig, ...]
    scenario: Scenario
    seed: int

    @property
    def shared(self) -> bool:
        """True where its sums do not depend on who holds which rows: not for clipped users."""
        first = self.family[0]
        return sums_rows(first.method) and CLIP not in first.options

    @property
    def key(self) -> str:
        """Name of a trial in its grid; equal keys give equal results."""
        return f"{self.family[0].training}, {self.scenario.key}, seed {self.seed}"

    def noise(self, promise: Privacy, number: int, dimension: int) -> Tensor:
        """(dimension,) draws from N(0, 1), alike in all trials of a seed.

        Other promises and further sums of one release have other draws. Settings and partitions
        are compared under the same noise (common random numbers), so their difference is not that
        of two draws.
        """
        words = f"noise, seed {self.seed}, epsilon {promise.epsilon}, delta {promise.delta}"
        words += f", sum {number}" if number else ""
        generator = torch.Generator().manual_seed(zlib.crc32(words.encode()))
        return torch.randn(dimension, generator=generator, dtype=torch.float64)


def sums_rows(method: str) -> bool:
    """True where users send a sum over their rows, whoever holds them."""
    return method in METHODS and METHODS[method].sums_rows


Place = tuple[str, str, tuple[tuple[str, Any], ...]]


def place(of: "MethodConfig | Result") -> Place:
    """Method, transform and options: equal for one candidate's setting and its results."""
    options = of.options.items()  # of a file lists, which were tuples
    values = ((name, tuple(v) if isinstance(v, list) else v) for name, v in options)
    return of.method, of.transform, tuple(sorted(values))


@dataclass(frozen=True)
class Choice:
    """A candidate's mean accuracy in a rehearsal, for one ε."""

    setting: MethodConfig
    accuracy: float  # balanced, in the rehearsal, not of the private run
    regret: float = 0.0  # how far it is below the best candidate, where it is farthest

    @property
    def place(self) -> Place:
        """Equal for equal settings, whatever their labels."""
        return place(self.setting)

    @property
    def twin(self) -> tuple[object, ...]:
        """Equal for settings that differ in the moments' weight alone."""
        method, transform, options = self.place
        return method, transform, [each for each in options if each[0] != "alpha"]


def safest_first(best: Sequence[Choice]) -> list[Choice]:
    """Choices, one first that suits other kinds of pictures, if there is one `NEAR` the best.

    On public tasks it is as good, and where rows have much in common it keeps other directions.
    """
    near = [c for c in best if c.accuracy > best[0].accuracy - NEAR and "keep" in c.setting.options]
    return sorted(best, key=lambda choice: choice not in near[:1])


def ranking(cells: Iterable[Result]) -> dict[float | None, list[Choice]]:
    """Candidates by ε, best first, by mean accuracy over tasks and seeds; the first wins a tie.

    Of candidates that differ in the moments' weight alone, by less than `TIE`, the heavier comes
    first: a rehearsal has fewer rows than the run, and what those leave open of the moments hides
    what their noise does.

    Examples:
        >>> def cell(method: str, accuracy: float) -> Result:
        ...     return Result(method, method, "iid", 1.0, 0, accuracy, {}, "default")
        >>> best = ranking([cell("softmax", 0.5), cell("svm", 0.6), cell("softmax", 0.8)])
        >>> [(choice.setting.method, round(choice.accuracy, 2)) for choice in best[1.0]]
        [('softmax', 0.65), ('svm', 0.6)]
    """
    values: dict[float | None, dict[Place, tuple[MethodConfig, list[float]]]] = {}
    for cell in cells:
        setting = MethodConfig(cell.label, cell.method, cell.transform, cell.options)
        of_epsilon = values.setdefault(cell.epsilon, {})
        of_epsilon.setdefault(place(cell), (setting, []))[1].append(
            cell.accuracy if cell.balanced is None else cell.balanced
        )
    return {
        epsilon: _heaviest_first(
            sorted(
                (Choice(setting, float(np.mean(found))) for setting, found in of_epsilon.values()),
                key=lambda choice: -choice.accuracy,
            )
        )
        for epsilon, of_epsilon in values.items()
    }


def by_regret(cells: Mapping[str, Iterable[Result]]) -> list[Choice]:
    """Candidates by their largest regret over kinds of tasks, the least first; of one ε.

    The regret of a candidate on a kind is how far its mean accuracy is below the best one's. On one
    kind alone the order is that of `ranking`.

    Args:
        cells: of each kind, from the same candidates.

    Examples:
        >>> def cell(name: str, accuracy: float) -> Result:
        ...     return Result(name, name, "iid", 1.0, 0, accuracy, {}, "default")
        >>> photographs = [cell("a", 0.9), cell("b", 0.85), cell("c", 0.5)]
        >>> letters = [cell("a", 0.2), cell("b", 0.5), cell("c", 0.6)]
        >>> best = by_regret({"photographs": photographs, "letters": letters})
        >>> [(choice.setting.method, round(choice.regret, 2)) for choice in best]
        [('b', 0.1), ('a', 0.4), ('c', 0.4)]
    """
    ranked = [each for kind in cells.values() for each in ranking(kind).values()]
    regrets: dict[Place, list[float]] = {}
    for of_kind in ranked:
        top = max(choice.accuracy for choice in of_kind)
        for choice in of_kind:
            regrets.setdefault(choice.place, []).append(top - choice.accuracy)
    means = dict.fromkeys(regrets, 0.0)
    for choice in (choice for of_kind in ranked for choice in of_kind):
        means[choice.place] += choice.accuracy / len(ranked)
    found = [
        Choice(choice.setting, means[choice.place], max(regrets[choice.place]))
        for choice in ranked[0]
    ]
    return found if len(ranked) == 1 else sorted(found, key=lambda c: (c.regret, -c.accuracy))


def _heaviest_first(ranked: list[Choice]) -> list[Choice]:
    best = ranked[0]
    twins = [each for each in ranked if each.twin == best.twin]
    near = [each for each in twins if best.accuracy - each.accuracy < TIE]
    first = max(near, key=lambda each: each.setting.options.get("alpha") or 0.0)
    return [first, *(each for each in ranked if each is not first)]
