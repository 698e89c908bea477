"""Methods of one secure sum, by name: how each is built, its words, its rule and its options.

Nothing is loaded before a method is built: names, words and options are read without torch. Options
of the methods that ours are compared with are in `research.rivals.options`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain import check

if TYPE_CHECKING:
    from embed import PublicTransform
    from train_distributed.one_shot.method import Method
    from train_distributed.one_shot.statistic import Statistic

DEFAULT = "discriminant"  # method where none is named
SURE = 0.0066  # prior: t up to which second moments weigh more than is free


@dataclass(frozen=True)
class Rule:
    """How a method's settings follow from t, the noise in a class mean; see `request`."""

    information: float = 1.0  # of all that directions hold, in as few of them as hold it
    l2_reg: float | None = None  # Λ/t; None: the method has no Λ that a rule could help
    one_vs_rest: bool = False  # C = K parts of what is sent instead of 1, in t
    noise: Literal["shared", "everybody's", "central"] = "shared"  # m


OTHERS = Rule(noise="everybody's")  # DP-FL, ADMM, Charter: no sum hides a user's own


@dataclass(frozen=True, kw_only=True)
class MethodEntry:
    """A method of the registry."""

    build: Callable[..., "Method"]  # (transform, num_classes, **options), its keywords the options
    words: str  # for the card
    probabilities: str | None = None  # how they are made, for the report; None: unknown
    rule: Rule = OTHERS
    sums_rows: bool = False  # a sum over rows, whoever holds them
    classes: bool = True  # learns one class a picture
    findings: bool = False  # learns several findings a picture


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
    "findings": MethodEntry(
        build=partial(_built, "findings"),
        words="findings: every user submits sums of its rows by finding, and second moments; "
        "each finding's classifier is a Gaussian discriminant of the rows with it against those "
        "without, its mean and covariance posterior estimates under a public prior",
        probabilities="sigmoid of the scores: log odds of Gaussian rows with and without a "
        "finding, calibrated as far as they are such",
        rule=Rule(information=0.9),
        sums_rows=True,
        classes=False,
        findings=True,
    ),
    "softmax": MethodEntry(
        build=partial(_built, "blind_averaging", "softmax"),
        words="blind averaging: the average of softmax layers that the users trained",
        probabilities="softmax of the scores: those of the averaged regressions, evened out by "
        "regularisation and clipping and disturbed by noise; not calibrated",
        rule=Rule(l2_reg=2),
    ),
    "svm": MethodEntry(
        build=partial(_built, "blind_averaging", "svm"),
        words="blind averaging: the average of one-vs-rest Huber SVMs that the users trained",
        probabilities="softmax (of findings sigmoid) of the scores, which are no "
        "log-probabilities: a margin has no likelihood; not calibrated",
        rule=Rule(l2_reg=16),
        findings=True,
    ),
    "logistic": MethodEntry(
        build=partial(_built, "blind_averaging", "logistic"),
        words="blind averaging: the average of one-vs-rest logistic regressions of the users",
        probabilities="softmax (of findings sigmoid) of the scores of regressions of one class "
        "against the rest, regularised, clipped and disturbed by noise; not calibrated",
        rule=Rule(l2_reg=16),
        findings=True,
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
    from train_distributed.one_shot.extra_sums import FeatureSum

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
        own["prior"] = checked_prior(own["prior"], num_classes, findings=not METHODS[name].classes)
    if name in (DEFAULT, "findings"):
        own = {"moments": clip is None, **own}
        if clip is not None:
            check.not_set("with user_clip", moments=own["moments"])
        if noise is not None and own["moments"] and name == DEFAULT:
            own = {"alpha": moment_weight(noise), **own}

    def on(rows: "PublicTransform") -> "Method":
        """The method on the rows of a transform."""
        try:
            made = METHODS[name].build(rows, num_classes, **own)
        except TypeError as error:
            raise ValueError(
                f"options must fit method {name!r}, got {sorted(own)}: {error}"
            ) from error
        made = replace(made, statistic=_clipped(made.statistic, clip), transform=rows)
        made.validate()
        return made

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
    first = _clipped(FeatureSum(transform=transform), first_clip)
    method = replace(
        on(planned), first=first, on=lambda centre: on(transform.mapped(noise, most, centre))
    )
    method.validate()
    return method


def for_findings(method: str) -> str:
    """The method that learns several findings a picture, of the same name but for the default's.

    Raises ValueError for a method that learns one class a picture.
    """
    method = "findings" if method == DEFAULT else method
    able = [name for name, entry in METHODS.items() if entry.findings]
    if method not in able:
        raise ValueError(
            f"method must be one of {', '.join(able)} for several findings a picture, got "
            f"{method!r}"
        )
    return method


def clips(given: Any) -> tuple[float | None, float | None]:
    """Clip norms of the first sum and of the main sum, from a number or one or two numbers."""
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


def _clipped(statistic: "Statistic", norm: float | None) -> "Statistic":
    from train_distributed.one_shot.user_clip import UserClip

    return statistic if norm is None else UserClip(statistic=statistic, norm=norm)


def given(options: Any) -> dict[str, Any]:
    """Options of a dataclass that are not None."""
    return {name: value for name, value in asdict(options).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class SumOptions:
    """How many sums are opened, and of what (default: by a public rule)."""

    sums: Literal[1, 2] | None = None
    """2: a first sum, for 10 % of the budget, finds where
    the private rows lie (default; 1 for --unit user)."""
    components: int | None = None
    """Largest number of directions that are summed; fewer
    make messages shorter (default: by the noise)."""
    rounds: int | None = None
    """Further sums where one owner has all rows
    (default: 16 where noise is small)."""
    user_clip: tuple[float, ...] | None = None
    """Norm to which a user's vector is clipped, for --unit
    user (two: of the first sum and of the other one)."""
    prior: Literal["equal", "private"] | Path | None = None
    """Class frequencies that predictions assume: equal
    (default), private ones, a JSON file of shares."""


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """Settings of the layer, called a head, that each user trains."""

    l2_reg: float | None = None
    """L2 regularisation Λ (default: by a public rule)."""
    radius: float | None = None
    """Radius R of the ball that head weights are projected to."""
    solver: Literal["exact", "sgd"] | None = None
    """Certified minimiser (default), or projected SGD."""
    epochs: int | None = None
    """Epochs of SGD."""
    batch_size: int | None = None
    """Batch size of SGD."""
    bound: Literal["tight", "paper"] | None = None
    """Bound on the sensitivity of a head; `paper` needs --radius."""


@dataclass(frozen=True, kw_only=True)
class MethodOptions(SumOptions, HeadOptions):
    """Settings of a method; each is left to the method's default unless given."""

    def given(self) -> dict[str, Any]:
        """Those that were set."""
        return given(self)


@dataclass(frozen=True, kw_only=True)
class SettledOptions(MethodOptions):
    """All settings of a method: also the one that only `ReleaseRequest.settings` fills in."""

    class_noise: float | None = None
    """Noise in a class mean, for which directions and their lengths are chosen; see `request`."""
    most_findings: float | None = None
    """Findings of a record that count in full; more weigh less each."""
    unknown: Literal["ask"] | None = None
    """Findings that are unknown are told apart from absent ones."""
    findings: Literal[True] | None = None
    """The head is of several findings a picture, as federations agree on before there are rows."""
