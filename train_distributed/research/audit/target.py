"""The release under attack: a black box that turns a data set into what it opens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import accounting
from train_distributed.one_shot.averaged_heads import L2_REG
from train_distributed.one_shot.defaults import rule_of
from train_distributed.one_shot.faults import FaultInjection
from train_distributed.one_shot.release import ReleaseRequest
from train_distributed.one_shot.report import Noise
from train_distributed.privacy.promise import Privacy
from train_distributed.research.audit.evaluation import AnswersCase
from train_distributed.research.audit.worst_case import CONSTANT, WorstCase
from train_distributed.research.baselines.learn import run_method

NEVER_BARE, BARE_MEAN = ("amp",), 40  # methods that refuse ε = inf; releases in their mean
SEEDS = 10  # in the mean of releases of several rounds


@dataclass(frozen=True)
class Target:
    """A configuration to attack: the sums that two neighbours open, and the promise."""

    method: str  # or "evaluation", of an `AnswersCase`
    federation: WorstCase
    noise: Noise = "discrete"
    options: Mapping[str, Any] = field(default_factory=dict)
    releases: int = 1  # of the same data, the r-th with ε/r; the promise composes

    @property
    def transform(self) -> PublicTransform:
        """Nothing but the constant and a clip to 1."""
        clip_norm = math.sqrt(1 + CONSTANT**2)
        return PublicTransform.identity(self.federation.features, clip_norm, CONSTANT)

    def opened(self, data: EmbeddingSet) -> Tensor:
        """(D,) float64, all that one attack sees: what the sums of all releases showed."""
        return self._seen(data, self._promises())

    def noiseless(self, data: EmbeddingSet) -> Tensor:
        """(D,) the same without noise: the attacker knows either data set, so it knows this.

        A mean of releases for a method that has none, and of those with the same seeds for either
        data set where later sums depend on the noise of earlier ones, as the sums of the two differ
        by what they do under noise: it chooses the attack and proves nothing.
        """
        if self.method in NEVER_BARE:
            return torch.stack([self.opened(data) for _ in range(BARE_MEAN)]).mean(0)
        if self.options.get("rounds"):
            seeds = [torch.Generator().manual_seed(seed) for seed in range(SEEDS)]
            promises = self._promises()
            return torch.stack([self._seen(data, promises, seed) for seed in seeds]).mean(0)
        bare = [replace(promise, epsilon=math.inf) for promise in self._promises()]
        return self._seen(data, bare)

    def claim(self, data: EmbeddingSet) -> "Claim":
        """Promises in the reports of the releases, composed."""
        reports = [self._release(data, promise)[1] for promise in self._promises()]
        delta = self.federation.privacy.delta
        gaussian = all(report.get("privacy_curve") == "gaussian" for report in reports)
        if len(reports) == 1:
            return Claim(reports[0]["epsilon"], delta, gaussian)
        if not gaussian:
            raise ValueError(f"releases must be 1 for method {self.method!r}, got {self.releases}")
        mu2 = sum(r["compositions"] / r["noise_multiplier"] ** 2 for r in reports)
        return Claim(accounting.epsilon(delta, 1 / math.sqrt(mu2)), delta, gaussian)

    def _promises(self) -> list[Privacy]:
        promise = self.federation.privacy
        return [replace(promise, epsilon=promise.epsilon / (r + 1)) for r in range(self.releases)]

    def _seen(
        self, data: EmbeddingSet, promises: list[Privacy], seed: torch.Generator | None = None
    ) -> Tensor:
        return torch.cat([self._release(data, promise, seed)[0] for promise in promises])

    def _release(
        self, data: EmbeddingSet, promise: Privacy, seed: torch.Generator | None = None
    ) -> tuple[Tensor, Mapping[str, Any]]:
        """(D,) that the attacker sees, the opened sum or weights where none is kept; the report."""
        if isinstance(self.federation, AnswersCase):
            evaluated = self.federation.summed(data, promise, self.noise)
            return evaluated.opened, evaluated.report
        # Λ where none is given: the same whatever the noise, and with none
        fixed = {"l2_reg": L2_REG} if rule_of(self.method).l2_reg else {}
        request = ReleaseRequest(
            embeddings=data,
            method=self.method,
            privacy=promise,
            transform=self.transform,
            noise=self.noise if seed is None else "float",
            generator=seed,
            min_survivors=self.federation.min_survivors,
            faults=FaultInjection(self.federation.dropped, self.federation.known_noise),
            options=fixed | dict(self.options),
        )
        released = run_method(request)
        seen = released.weights if released.opened is None else released.opened
        return seen.double().flatten(), released.report


@dataclass(frozen=True)
class Claim:
    """(ε, δ) as reported, and whether the whole Gaussian curve is promised with it."""

    epsilon: float
    delta: float
    gaussian: bool
