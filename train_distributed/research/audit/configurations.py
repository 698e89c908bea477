"""Targets of `audit --method all`: every method, float and discrete, in all kinds of promises."""

from dataclasses import replace

from train_distributed.one_shot.report import Noise
from train_distributed.privacy.promise import Privacy
from train_distributed.research.audit.evaluation import AnswersCase
from train_distributed.research.audit.target import Target
from train_distributed.research.audit.worst_case import WorstCase

SVM = {"l2_reg": 20.0}  # strong enough that no loss saturates: the bound is attained
EVERY = (
    ("discriminant", {}),
    ("class-sums", {}),
    ("least-squares", {}),
    ("softmax", {}),
    ("svm", SVM),
    ("logistic", SVM),
)
CODE = {"class_code": 0.45}
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
        # trained by projected SGD, with a short last batch and with either bound
        Target("svm", pair, "float", SVM | SGD),
        Target("softmax", pair, "float", {"radius": 0.5, "bound": "paper"} | SGD),
        Target("svm", WorstCase(1, 3, 1, 2, wide), "discrete", SVM | SGD | {"radius": 0.02}),
        # labels beside heads, for a prior: the worst record changes its label
        Target("softmax", pair, "float", {"prior": "equal"}),
        Target("logistic", single, "discrete", SVM | {"prior": "equal"}),
        # an unusual weight of the second moments: the worst angle is neither 0 nor 180 degrees
        Target("least-squares", WorstCase(1, 2, 2, 2, tight), "float", {"alpha": 1.5}),
        # coded classes: the worst record changes its label, or its features turn
        Target("discriminant", pair, "float", CODE),
        Target("class-sums", single, "discrete", CODE),
        Target("least-squares", WorstCase(1, 2, 2, 3, tight), "float", CODE | {"alpha": 1.5}),
        Target("discriminant", WorstCase(1, 3, 2, 2, by_user), "discrete", CODE | CLIP),
        # many classes, many users, more of them dishonest, all of them honest
        Target("svm", WorstCase(1, 2, 1, 10, tight), "float", SVM),
        Target("class-sums", WorstCase(40, 1, 2, 3, tight), "float"),
        Target("class-sums", WorstCase(8, 1, 1, 2, Privacy(3.0, 1e-5, 0.2)), "float"),
        Target("softmax", WorstCase(6, 2, 1, 2, Privacy(3.0, 1e-5, 1.0)), "float"),
        # users that drop out
        Target("class-sums", WorstCase(10, 1, 1, 2, tight, min_survivors=7), "float"),
        Target("svm", WorstCase(4, 2, 1, 2, wide, min_survivors=3), "discrete", SVM),
        # groups and whole users
        Target("class-sums", WorstCase(4, 2, 1, 2, Privacy(3.0, 1e-5, group_size=3)), "float"),
        Target("svm", WorstCase(4, 3, 1, 2, by_user), "float", SVM),
        Target("softmax", WorstCase(1, 3, 1, 2, Privacy(8.0, 1e-6, unit="user")), "discrete"),
        # users whose submissions are clipped, and groups of them
        Target("class-sums", WorstCase(2, 3, 2, 2, by_user), "float", CLIP),
        Target("discriminant", WorstCase(1, 3, 2, 2, by_user), "discrete", CLIP),
        Target(
            "least-squares", WorstCase(4, 3, 2, 2, replace(by_user, group_size=2)), "float", CLIP
        ),
        Target("svm", WorstCase(1, 3, 2, 3, by_user), "discrete", SVM | {"user_clip": 0.05}),
        Target("class-sums", WorstCase(1, 3, 2, 2, tight), "discrete", CLIP),
        # small and large ε, and several releases of the same data
        Target("class-sums", WorstCase(1, 1, 1, 2, Privacy(1.0, 0.1)), "float"),
        Target("class-sums", WorstCase(1, 1, 1, 2, Privacy(8.0, 1e-6)), "float"),
        Target("class-sums", WorstCase(2, 1, 1, 2, tight), "float", releases=3),
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
