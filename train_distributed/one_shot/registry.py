"""Methods of one secure sum, by name: how each is built, and the words and rules that go with it.

Nothing is loaded before a method is built: names and words are read without torch.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check

if TYPE_CHECKING:
    from embed import PublicTransform
    from embed.water_filling import Centre
    from train_distributed.one_shot.method import Method
    from train_distributed.one_shot.statistic import Statistic

SURE = 0.0066  # prior: t up to which second moments weigh more than is free


@dataclass(frozen=True)
class Rule:
    """How a method's settings follow from t, the noise in a class mean; see `defaults`."""

    information: float = 1.0  # of all that directions hold, in as few of them as hold it
    l2_reg: float | None = None  # Λ/t; None: the method has no Λ that a rule could help
    one_vs_rest: bool = False  # C = K parts of what is sent instead of 1, in t
    noise: Literal["shared", "everybody's", "central"] = "shared"  # m


OTHERS = Rule(noise="everybody's")  # DP-FL, ADMM, Charter: no sum hides a user's own


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """One method of the registry."""

    build: Callable[..., "Method"]  # (transform, num_classes, **options), its keywords the options
    words: str  # for the card
    probabilities: str | None = None  # how they are made, for the report; None: unknown
    rule: Rule = OTHERS
    sums_rows: bool = False  # a sum over rows, whoever holds them


def _built(module: str, *arguments: Any, **options: Any) -> "Method":
    home = import_module(f"train_distributed.one_shot.{module}")
    return home.build(*arguments, **options)


METHODS: dict[str, MethodEntry] = {
    "discriminant": MethodEntry(
        build=partial(_built, "discriminant"),
        words="discriminant: every user submits class sums, and second moments of its rows; the "
        "classifier is Gaussian discriminant analysis, its means and covariance posterior "
        "estimates under a public prior",
        probabilities="softmax of the scores / temperature: the posterior of Gaussian classes with "
        "what the sum leaves open of their means, calibrated as far as the classes are such",
        rule=Rule(information=0.9),
        sums_rows=True,
    ),
    "softmax": MethodEntry(
        build=partial(_built, "averaged_heads", "softmax"),
        words="blind averaging: the average of softmax layers that the users trained",
        probabilities="softmax of the scores: those of the averaged regressions, evened out by "
        "regularisation and clipping and disturbed by noise; not calibrated",
        rule=Rule(l2_reg=2),
    ),
    "svm": MethodEntry(
        build=partial(_built, "averaged_heads", "svm"),
        words="blind averaging: the average of one-vs-rest Huber SVMs that the users trained",
        probabilities="softmax of the scores, which are no log-probabilities: a margin has no "
        "likelihood; not calibrated",
        rule=Rule(l2_reg=16),
    ),
    "logistic": MethodEntry(
        build=partial(_built, "averaged_heads", "logistic"),
        words="blind averaging: the average of one-vs-rest logistic regressions of the users",
        probabilities="softmax of the scores of regressions of one class against the rest, evened "
        "out by regularisation and clipping and disturbed by noise; not calibrated",
        rule=Rule(l2_reg=16),
    ),
}

# Words for the card about the methods that we compare with, which research has.
RIVALS = {
    "dp-fl": "DP-SGD on one softmax layer, by Opacus, without a secure sum",
    "output-perturbation": "the average of logistic minimisers (Jayaraman et al. 2018, Alg. 1)",
    "gradient-perturbation": "gradient descent, one noisy secure sum of gradients a round "
    "(Jayaraman et al. 2018, Alg. 2)",
    "dp-svm-smo": "the average of liblinear's SVMs (Kirschte et al. 2024, App. C)",
    "amp": "approximate minima perturbation of Huber SVMs (Iyengar et al. 2019), all rows in one "
    "place",
    "centralised-softmax": "a softmax layer, all rows at one user",
    "centralised-svm": "one-vs-rest Huber SVMs, all rows at one user",
}
MANY_ROUNDS = {
    "admm-dual": "ADMM among neighbours, dual variables perturbed",
    "admm-primal": "ADMM among neighbours, primal variables perturbed",
    "charter": "Charter: cutting planes from noisy gradients of the clients",
    "charter-sum": "Charter: cutting planes from secure sums of noisy gradients",
}
NOT_PRIVATE = {
    "non-private-softmax": "softmax regression, not private",
    "non-private-svm": "a linear SVM, not private",
}


def build_method(
    name: str, transform: "PublicTransform", num_classes: int, options: Mapping[str, Any]
) -> "Method":
    """The method of this name, with clip norm and constant from the transform of its rows.

    Options are keywords of the entry's `build`, and for any method

    * `class_noise`, t, for which the rows are mapped; without it they are raw coordinates;
    * `components`, q, with `class_noise`: the most directions;
    * `sums`, 2 for a first one that finds the centre, which needs `class_noise`; 1 is the default;
    * `user_clip`, the norm of `UserClip`, or a pair for the first sum and the other. With one a
      discriminant sends no second moments: those of n rows are about α n long, class sums of mixed
      classes √n, so that a clip that spares both would need √n times the noise.

    A `prior` may be a list of shares. Raises ValueError for an unknown name or option, or a value
    out of range.
    """
    from embed.water_filling import MOST, PLANNED_SHARE, Centre
    from train_distributed.one_shot.class_prior import checked_prior
    from train_distributed.one_shot.first_sum import FeatureSum

    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    own = dict(options)
    sums, noise = own.pop("sums", 1), own.pop("class_noise", None)
    components = own.pop("components", None)
    check.one_of((1, 2), sums=sums)
    first_clip, clip = clips(own.pop("user_clip", None))
    if noise is not None:
        check.within("[0, inf)", class_noise=noise)
    if "prior" in own:
        own["prior"] = checked_prior(own["prior"], num_classes)
    if name == "discriminant":
        own = {"moments": clip is None, **own}
        if clip is not None:
            check.not_set("with user_clip", moments=own["moments"])
        if noise is not None and own["moments"]:
            own = {"alpha": moment_weight(noise), **own}
    on = partial(_on, name, num_classes=num_classes, options=own, clip=clip)
    if noise is None:
        check.not_set("without class_noise", components=components, first_clip=first_clip)
        check.equal(1, sums=sums)
        return on(transform)
    most = min(MOST, transform.dim - 1) if components is None else components
    planned = transform.mapped(noise, most, Centre.public(transform.public, PLANNED_SHARE))
    most = planned.dim - 1
    if sums == 1:
        check.not_set("of a first sum, without one", user_clip=first_clip)
        return on(transform.mapped(noise, most))
    first = FeatureSum(transform=transform)
    about = partial(_about, on, transform, noise, most)
    method = replace(on(planned), first=_clipped(first, first_clip), on=about)
    method.validate()
    return method


def clips(given: Any) -> tuple[float | None, float | None]:
    """Users' clips of a first sum and of the other, from a number, or a sequence of one or two."""
    if given is None:
        return None, None
    found = tuple(given) if isinstance(given, Sequence) else (given,)
    if not 1 <= len(found) <= 2:
        raise ValueError(f"user_clip must be one number, or one of each of two sums, got {given}")
    return (None, found[0]) if len(found) == 1 else (found[0], found[1])


def moment_weight(noise: float) -> float | None:
    """α = (`SURE`/t)^¼ of second moments, at most 1; None for 1/√2, which costs no noise.

    The less noise the class means have, the more of the remaining error is the covariance's.
    """
    wanted = (SURE / noise) ** 0.25 if noise else math.inf
    return round(min(wanted, 1.0), 2) if wanted > math.sqrt(0.5) else None


def _about(
    on: "Callable[[PublicTransform], Method]",
    transform: "PublicTransform",
    noise: float,
    most: int,
    centre: "Centre",
) -> "Method":
    return on(transform.mapped(noise, most, centre))


def _on(
    name: str,
    transform: "PublicTransform",
    *,
    num_classes: int,
    options: dict[str, Any],
    clip: float | None,
) -> "Method":
    """The method on the rows of a transform."""
    try:
        method = METHODS[name].build(transform, num_classes, **options)
    except TypeError as error:
        raise ValueError(
            f"options must fit method {name!r}, got {sorted(options)}: {error}"
        ) from error
    statistic = _clipped(method.statistic, clip)
    method = replace(method, statistic=statistic, transform=transform)
    method.validate()
    return method


def _clipped(statistic: "Statistic", norm: float | None) -> "Statistic":
    from train_distributed.one_shot.user_clip import UserClip

    return statistic if norm is None else UserClip(statistic=statistic, norm=norm)
