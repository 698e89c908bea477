"""The release under attack, and those of `audit --method all`: all methods, noises and promises."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from train_distributed import accounting
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.request import FaultInjection, Noise, ReleaseRequest, rule_of
from train_distributed.privacy.promise import Privacy
from train_distributed.research.audit.worst_case import (
    CONSTANT,
    AnswersCase,
    WorstCase,
    with_findings,
)
from train_distributed.research.rivals.learn import run_method

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
        if self._several:
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

    @property
    def _several(self) -> bool:
        """Whether there are several sums."""
        return bool(self.options.get("rounds")) or self.options.get("sums") == 2

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
        released = run_method(self.request(data, promise, seed=seed))
        seen = released.weights if released.opened is None else released.opened
        return seen.double().flatten(), released.report

    def request(
        self,
        data: EmbeddingSet,
        promise: Privacy | None = None,
        *,
        seed: torch.Generator | None = None,
        **more: Any,
    ) -> ReleaseRequest:
        """Request for a release of a data set; `more` are further fields of `ReleaseRequest`."""
        # Λ is the same whatever the noise, and with none
        fixed = {"l2_reg": 1.0} if rule_of(self.method).l2_reg else {}
        if self.method in METHODS and not METHODS[self.method].classes:
            data = with_findings(data, self.federation.num_classes)
        return ReleaseRequest(
            embeddings=data,
            method=self.method,
            privacy=promise or self.federation.privacy,
            transform=self.transform,
            noise=self.noise if seed is None else "float",
            generator=seed,
            min_survivors=self.federation.min_survivors,
            faults=FaultInjection(self.federation.dropped, self.federation.known_noise),
            options=fixed | dict(self.options),
            **more,
        )


@dataclass(frozen=True)
class Claim:
    """(ε, δ) as reported, and whether the whole Gaussian curve is promised with it."""

    epsilon: float
    delta: float
    gaussian: bool


SVM = {"l2_reg": 20.0}  # strong enough that no loss saturates: the bound is attained
TWO = {"sums": 2, "class_noise": 0.3}  # a first one before, about whose noised mean rows are mapped
EVERY = (
    ("discriminant", {}),
    ("findings", {}),
    ("softmax", {}),
    ("svm", SVM),
    ("logistic", SVM),
)
CLIP = {"user_clip": 0.5}  # of users whose sums are several times as long
SGD = {"solver": "sgd", "epochs": 2, "batch_size": 2}


def standing() -> tuple[Target, ...]:
    """Configurations of correct code, none of which may be found broken."""
    tight, wide = Privacy(3.0, 1e-5), Privacy(8.0, 1e-6)
    by_user = Privacy(3.0, 1e-5, unit="user")
    pair, single = WorstCase(2, 3, 2, 2, tight), WorstCase(1, 3, 2, 2, wide)
    kinds: tuple[tuple[Noise, WorstCase], ...] = (("float", pair), ("discrete", single))
    return (
        # every method with either kind of noise
        *(
            Target(method, where, noise, options)
            for method, options in EVERY
            for noise, where in kinds
        ),
        # with further rounds, whose sums depend on the noise of earlier ones
        Target("discriminant", pair, "float", {"rounds": 4}),
        Target("discriminant", single, "discrete", {"rounds": 2}),
        # with a sum before, about whose noised mean the rows of the other are taken
        Target("discriminant", pair, "float", TWO),
        Target("discriminant", single, "discrete", TWO),
        Target("findings", pair, "float", TWO | {"most_findings": 1.0}),
        Target("softmax", pair, "float", TWO),
        Target("discriminant", pair, "float", {**TWO, "user_clip": (0.3, 0.5)}),
        # trained by projected SGD, with a short last batch and with either bound
        Target("svm", pair, "float", SVM | SGD),
        Target("softmax", pair, "float", {"radius": 0.5, "bound": "paper"} | SGD),
        Target("svm", WorstCase(1, 3, 1, 2, wide), "discrete", SVM | SGD | {"radius": 0.02}),
        # labels beside heads, for a prior: the worst record changes its label
        Target("softmax", pair, "float", {"prior": "equal"}),
        Target("logistic", single, "discrete", SVM | {"prior": "equal"}),
        # an unusual weight of the second moments: the worst angle is neither 0 nor 180 degrees
        Target("discriminant", WorstCase(1, 2, 2, 2, tight), "float", {"alpha": 1.5}),
        # many classes, many users, more of them dishonest, all of them honest
        Target("svm", WorstCase(1, 2, 1, 10, tight), "float", SVM),
        Target("discriminant", WorstCase(40, 1, 2, 3, tight), "float"),
        Target("discriminant", WorstCase(8, 1, 1, 2, Privacy(3.0, 1e-5, 0.2)), "float"),
        Target("softmax", WorstCase(6, 2, 1, 2, Privacy(3.0, 1e-5, 1.0)), "float"),
        # users that drop out
        Target("discriminant", WorstCase(10, 1, 1, 2, tight, min_survivors=7), "float"),
        Target("svm", WorstCase(4, 2, 1, 2, wide, min_survivors=3), "discrete", SVM),
        # groups and whole users
        Target("discriminant", WorstCase(4, 2, 1, 2, Privacy(3.0, 1e-5, group_size=3)), "float"),
        Target("svm", WorstCase(4, 3, 1, 2, by_user), "float", SVM),
        Target("softmax", WorstCase(1, 3, 1, 2, Privacy(8.0, 1e-6, unit="user")), "discrete"),
        # users whose submissions are clipped, and groups of them
        Target("discriminant", WorstCase(2, 3, 2, 2, by_user), "float", CLIP),
        Target("discriminant", WorstCase(1, 3, 2, 2, by_user), "discrete", CLIP),
        Target(
            "discriminant", WorstCase(4, 3, 2, 2, replace(by_user, group_size=2)), "float", CLIP
        ),
        Target("svm", WorstCase(1, 3, 2, 3, by_user), "discrete", SVM | {"user_clip": 0.05}),
        Target("discriminant", WorstCase(1, 3, 2, 2, tight), "discrete", CLIP),
        # small and large ε, and several releases of the same data
        Target("discriminant", WorstCase(1, 1, 1, 2, Privacy(1.0, 0.1)), "float"),
        Target("discriminant", WorstCase(1, 1, 1, 2, Privacy(8.0, 1e-6)), "float"),
        Target("discriminant", WorstCase(2, 1, 1, 2, tight), "float", releases=3),
        # the evaluation of a model, with its bins and without, at the claims of a small ε too
        *(Target("evaluation", case) for case in _answers()),
        Target("evaluation", AnswersCase(2, 3, 1, 2, tight), "float"),
    )


def by_servers() -> tuple[Target, ...]:
    """All configurations of `standing`, with two servers that each add all the noise.

    The attacker knows the noise of one of them, and all about every user but one.
    """
    found = []
    for target in standing():
        privacy = replace(target.federation.privacy, honest_fraction=None, noise_by="servers")
        federation = replace(target.federation, privacy=privacy)
        found.append(replace(target, federation=federation))
    return tuple(found)


def _answers() -> tuple[AnswersCase, ...]:
    tight, users = Privacy(3.0, 1e-5), Privacy(3.0, 1e-5, unit="user")
    return (
        AnswersCase(2, 3, 1, 2, tight),
        AnswersCase(1, 3, 1, 3, Privacy(8.0, 1e-6), bins=0),
        AnswersCase(6, 1, 1, 3, tight, min_survivors=5, bins=4),
        AnswersCase(4, 2, 1, 2, users),
        AnswersCase(2, 3, 1, 2, Privacy(0.1, 1e-5)),
    )
