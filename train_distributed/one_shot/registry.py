"""Methods of one secure sum, by name: how each is built, and the words and rules that go with it.

Nothing is loaded before a method is built: names and words are read without torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, get_args

from pretrain import check

if TYPE_CHECKING:
    from embed import PublicTransform
    from train_distributed.one_shot.method import Method

Centre = Literal["private", "public"]


@dataclass(frozen=True)
class Rule:
    """Numbers b, e and a of the rule for settings that are left out; see `defaults`."""

    components: float  # b
    exponent: float  # e
    l2_reg: float | None = None  # a; None: the method has no Λ that a rule could help
    one_vs_rest: bool = False  # C = K instead of 1
    noise: Literal["shared", "everybody's", "central"] = "shared"  # m
    directions: Literal["principal", "tempered", "hedge"] = "principal"
    usual_classes: int | None = None  # K₀: of K classes t counts √(K₀/K) times, for q
    centred: bool = False  # a sum before, of where the rows lie


OTHERS = Rule(2.0, 0.5, noise="everybody's")  # DP-FL, ADMM, Charter: no sum hides a user's own
ONE = Rule(25, 0.5, 8, directions="tempered")
MANY = Rule(40, 0.5, 32, True, directions="tempered")


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
        rule=Rule(3.74, 0.75, directions="hedge", centred=True, usual_classes=10),
        sums_rows=True,
    ),
    "softmax": MethodEntry(
        build=partial(_built, "averaged_heads", "softmax"),
        words="blind averaging: the average of softmax layers that the users trained",
        probabilities="softmax of the scores: those of the averaged regressions, evened out by "
        "regularisation and clipping and disturbed by noise; not calibrated",
        rule=ONE,
    ),
    "svm": MethodEntry(
        build=partial(_built, "averaged_heads", "svm"),
        words="blind averaging: the average of one-vs-rest Huber SVMs that the users trained",
        probabilities="softmax of the scores, which are no log-probabilities: a margin has no "
        "likelihood; not calibrated",
        rule=MANY,
    ),
    "logistic": MethodEntry(
        build=partial(_built, "averaged_heads", "logistic"),
        words="blind averaging: the average of one-vs-rest logistic regressions of the users",
        probabilities="softmax of the scores of regressions of one class against the rest, evened "
        "out by regularisation and clipping and disturbed by noise; not calibrated",
        rule=MANY,
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

    Options are keywords of the entry's `build`; for any method also `user_clip`, the norm of
    `UserClip`, with which a discriminant sends no second moments, `centre`, "private" for a sum before of where the rows lie, and then `keep` and
    `descent_above`, see `centring`. A `prior` may be a list of shares. Raises ValueError for an
    unknown name or option, or a value out of range.
    """
    from embed.recentred import first
    from train_distributed.one_shot.centring import FeatureSum
    from train_distributed.one_shot.class_prior import checked_prior
    from train_distributed.one_shot.user_clip import UserClip

    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    options = dict(options)
    centre = options.pop("centre", "public")
    check.one_of(get_args(Centre), centre=centre)
    keep, descent_above = options.pop("keep", None), options.pop("descent_above", None)
    if keep is not None and (centre == "public" or not METHODS[name].sums_rows):
        raise ValueError(f"keep must be left out without a private centre of sums, got {keep}")
    itself = partial(build_method, name, num_classes=num_classes, options=dict(options))
    norm = options.pop("user_clip", None)
    if norm is not None and name == "discriminant":
        # moments of n rows are about α n long, class sums of mixed classes √n: a clip that spares
        # both would need √n times the noise
        check.left_out("with user_clip", moments=options.get("moments"))
        options["moments"] = False
    counted = options.get("prior", "empirical") == "empirical"
    if descent_above is not None and (centre == "public" or name != "discriminant" or not counted):
        raise ValueError(
            "descent_above must be left out but for discriminant with a private centre and prior "
            f"'empirical', got {descent_above}"
        )
    if "prior" in options:
        options["prior"] = checked_prior(options["prior"], num_classes)
    kept, most = transform, max(keep or (transform.dim - 1,))
    if most < transform.dim - 1 and descent_above is None and not transform.placed:
        kept = first(transform, most)  # more will not be asked for
    try:
        method = METHODS[name].build(kept, num_classes, **options)
    except TypeError as error:
        raise ValueError(f"options must fit method {name!r}, got {sorted(options)}") from error
    if norm is not None:
        method = replace(method, statistic=UserClip(statistic=method.statistic, norm=norm))
    if centre == "private":
        keep = None if keep is None else tuple(keep)
        centring = FeatureSum(transform=transform, keep=keep, descent_above=descent_above)
        method = replace(method, centring=centring, on=itself)
    method.validate()
    return method
