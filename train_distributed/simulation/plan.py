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
SUBMITTED = ("moments", "class_code")  # options of statistics that say which ones are submitted


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
            seen = {name: value for name, value in seen.items() if name not in TRAINED}
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


@dataclass(frozen=True)
class Choice:
    """The candidate with the best mean accuracy in a rehearsal, for one ε."""

    setting: MethodConfig
    accuracy: float  # balanced, in the rehearsal, not of the private run

    @property
    def twin(self) -> tuple[object, ...]:
        """Equal for settings that differ in the moments' weight alone."""
        others = {k: v for k, v in self.setting.options.items() if k != "alpha"}
        return self.setting.method, self.setting.transform, sorted(others.items())


def ranking(cells: Iterable[Result]) -> dict[float | None, list[Choice]]:
    """Candidates by ε, best first, by mean accuracy over tasks and seeds; the first wins a tie.

    Of candidates that differ in the moments' weight alone, by less than `TIE`, the heavier comes
    first: a rehearsal has fewer rows than the run, and what those leave open of the moments hides
    what their noise does.

    Examples:
        >>> def cell(method: str, accuracy: float) -> Result:
        ...     return Result(method, method, "iid", 1.0, 0, accuracy, {}, "default")
        >>> best = ranking([cell("softmax", 0.5), cell("class-sums", 0.6), cell("softmax", 0.8)])
        >>> [(choice.setting.method, round(choice.accuracy, 2)) for choice in best[1.0]]
        [('softmax', 0.65), ('class-sums', 0.6)]
    """
    values: dict[float | None, dict[str, tuple[MethodConfig, list[float]]]] = {}
    for cell in cells:
        setting = MethodConfig(cell.label, cell.method, cell.transform, cell.options)
        name = f"{cell.method} {cell.transform} {sorted(cell.options.items())}"
        of_epsilon = values.setdefault(cell.epsilon, {})
        of_epsilon.setdefault(name, (setting, []))[1].append(
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


def _heaviest_first(ranked: list[Choice]) -> list[Choice]:
    best = ranked[0]
    twins = [each for each in ranked if each.twin == best.twin]
    near = [each for each in twins if best.accuracy - each.accuracy < TIE]
    first = max(near, key=lambda each: each.setting.options.get("alpha") or 0.0)
    return [first, *(each for each in ranked if each is not first)]
