"""A grid to compare, as values: methods x promises x partitions x seeds."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from train_distributed.one_shot.registry import METHODS
from train_distributed.privacy.promise import Privacy
from train_distributed.simulation.scenario import Scenario
from train_distributed.simulation.shared_training import CLIP, TRAINED

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
