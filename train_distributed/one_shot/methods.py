"""The ways to spend the one secure sum, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from embed import PublicTransform
from heads import HuberSVMHead, LogisticHead, SoftmaxHead
from train_distributed.one_shot.blind_averaging import BlindAveraging
from train_distributed.one_shot.class_prior import checked_prior, shares_of
from train_distributed.one_shot.class_sums import ClassSums, class_counts
from train_distributed.one_shot.discriminant import Discriminant
from train_distributed.one_shot.least_squares import LeastSquares
from train_distributed.one_shot.statistic import Method, Submitted
from train_distributed.one_shot.user_clip import UserClip
from train_distributed.one_shot.users import Chunk

HEADS = {"softmax": SoftmaxHead, "svm": HuberSVMHead, "logistic": LogisticHead}
STATISTICS = {"discriminant": Discriminant, "class-sums": ClassSums, "least-squares": LeastSquares}
METHODS = (*STATISTICS, *HEADS)
L2_REG = 1.0  # Λ where none is given


def unclipped(method: Method) -> Method:
    """The method itself, without a users' clip."""
    return method.method if isinstance(method, UserClip) else method


def rows_left(method: Method, total: Tensor, rows: int, noise_std: float) -> int:
    """How many of N rows a noised sum holds after a users' clip; see `UserClip.rows`."""
    return method.rows(total, rows, noise_std) if isinstance(method, UserClip) else rows


def method_report(method: Method) -> dict[str, Any]:
    """The method's name, Λ of a head, and the users' clip where there is one, in words too."""
    report: dict[str, Any] = {"method": method_name(method)}
    if isinstance(own := unclipped(method), BlindAveraging):
        report |= {"l2_reg": own.head.l2_reg}
    if isinstance(method, UserClip):
        words = "every user's submission was scaled down to this L2 norm, if longer, before noise"
        report |= {"user_clip": method.norm, "user_clip_means": words}
    return report


def method_name(method: Method) -> str | None:
    """The name under which `build_method` makes such a method; None for one of another kind."""
    method = unclipped(method)
    head = method.head if isinstance(method, BlindAveraging) else None
    kinds = [(STATISTICS, method), (HEADS, head)]
    return next(
        (n for names, is_a in kinds for n, kind in names.items() if type(is_a) is kind), None
    )


def check_method(method: Method, transform: PublicTransform, num_classes: int) -> None:
    """Refuses a method whose sensitivity is not that of the rows it is given.

    Args:
        method: built elsewhere.
        transform: the one that makes the rows, and that alone clips them.
        num_classes: K.

    Raises:
        ValueError: another transform, clip norm, dimension or K; or a method of another kind than
            those of METHODS, which does not say for which rows it is.
    """
    method.validate()
    method = unclipped(method)
    if isinstance(method, Discriminant | ClassSums | LeastSquares):
        stated = method.transform
        if not stated.same_rows(transform):
            raise ValueError(
                "transform must be the method's own, got another one: rows of norm "
                f"{transform.clip_norm} for a sensitivity stated for {stated.clip_norm}"
            )
        # What labels have shown the method's would be used, and the origin of the other looked at.
        if isinstance(method, Discriminant) and not stated.same_scatter(transform):
            raise ValueError(
                "transform must be the method's own, got one of the same rows whose classes "
                "scatter otherwise"
            )
    elif isinstance(method, BlindAveraging):
        if (method.head.clip_norm, method.dim) != (transform.clip_norm, transform.dim):
            raise ValueError(
                f"method must be made for rows of norm {transform.clip_norm} and {transform.dim} "
                f"columns, got one for {method.head.clip_norm} and {method.dim}"
            )
    else:
        raise ValueError(
            "method must be of Discriminant, ClassSums, LeastSquares or BlindAveraging, "
            f"got {type(method)}"
        )
    if method.num_classes != num_classes:
        raise ValueError(
            f"num_classes must be the method's {method.num_classes}, got {num_classes}"
        )


def build_method(
    name: str, transform: PublicTransform, num_classes: int, options: Mapping[str, Any]
) -> Method:
    """The method of this name, with c and a from the transform.

    Args:
        name: one of METHODS.
        transform: the public transform that makes the rows.
        num_classes: K.
        options: for statistics the fields of `Discriminant`, `ClassSums` or `LeastSquares`; for
            heads `l2_reg`, `radius`, `relaxation` (svm) and the fields of `BlindAveraging`; for
            any of them `user_clip`, the norm of `UserClip`. A `prior` may be a list of shares too.

    Raises:
        ValueError: an unknown name or option, a value out of range.
    """
    if name not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {name!r}")
    try:
        method = _build(name, transform, num_classes, dict(options))
    except TypeError as error:
        raise ValueError(f"options must fit method {name!r}, got {sorted(options)}") from error
    method.validate()
    return method


def _build(
    name: str, transform: PublicTransform, num_classes: int, options: dict[str, Any]
) -> Method:
    if (norm := options.pop("user_clip", None)) is not None:
        return UserClip(method=_build(name, transform, num_classes, options), norm=norm)
    if "prior" in options:
        options["prior"] = checked_prior(options["prior"], num_classes)
    if name in STATISTICS:
        return STATISTICS[name](num_classes=num_classes, transform=transform, **options)
    of_head = {"l2_reg": L2_REG} | {
        key: options.pop(key) for key in ("l2_reg", "radius", "relaxation") if key in options
    }
    head = HEADS[name](num_classes=num_classes, clip_norm=transform.clip_norm, **of_head)
    return BlindAveraging(head=head, dim=transform.dim, constant=transform.constant, **options)


def submissions(
    method: Submitted, chunk: Chunk, grid: float | None, generator: torch.Generator | None = None
) -> Tensor:
    """(u, D) float64 scaled submissions of these users, before their noise.

    SGD's sensitivity is that of rows whose order does not depend on what they are, as the order of
    class folders does: where it is the solver, every user's rows are shuffled first.

    Args:
        method: what they submit.
        chunk: their rows.
        grid: to whose multiples rows are rounded first, towards zero; None: rows as they are.
        generator: makes that order reproducible, for simulations; None: the operating system draws
            it.
    """
    own = method.method if isinstance(method, UserClip) else method
    if isinstance(own, BlindAveraging) and own.solver == "sgd":
        chunk = chunk.shuffled(generator)
    return method.submit(chunk.rounded(grid)) * method.scale


def weights_of(method: Method, total: Tensor, rows: int, noise_std: float) -> Tensor:
    """(d, K) weights from a (D,) scaled, noised sum.

    Args:
        method: whose submissions were summed.
        total: what was opened.
        rows: n of all users in the sum.
        noise_std: of the noise in one entry of it.
    """
    return method.classifier(total / method.scale, rows, noise_std)


def model_of(method: Method, total: Tensor, rows: int, noise_std: float) -> tuple[Tensor, float]:
    """The weights of `weights_of`, and the temperature T of their probabilities.

    T is found from the same sum, where the method's scores are no log-probabilities and the sum
    shows what to do about it; else it is 1.
    """
    own = unclipped(method)
    if type(own) is not LeastSquares:
        return weights_of(method, total, rows, noise_std), 1.0
    from train_distributed.one_shot.temperature import ridge_temperature

    rows = rows_left(method, total, rows, noise_std)
    solved = own.solve(total / own.scale, rows, noise_std)
    return solved.weights, ridge_temperature(solved, rows, noise_std, own.transform.constant)


def prior_report(
    method: Method, total: Tensor, rows: int, noise_std: float, class_names: Sequence[str]
) -> dict[str, Any]:
    """The class prior of the weights: the word for it, and its shares as far as they are known.

    Those of users' rows are the ones that the noised sum shows; a head's sum shows none.

    Args:
        method: as in `weights_of`.
        total: as there.
        rows: as there.
        noise_std: as there.
        class_names: K of them.
    """
    rows, method = rows_left(method, total, rows, noise_std), unclipped(method)
    if not isinstance(method, BlindAveraging | ClassSums | Discriminant | LeastSquares):
        return {}
    report = {"prior": method.prior if isinstance(method.prior, str) else "given"}
    if not isinstance(method, BlindAveraging):
        counted = class_counts(
            total[: method.num_classes], method.transform.constant, rows, noise_std
        )
    elif method.prior == "empirical":
        return report
    else:
        counted = torch.ones(method.num_classes, dtype=torch.float64)
    shares = shares_of(method.prior, counted / counted.sum()).tolist()
    return report | {"class_prior": dict(zip(class_names, shares, strict=True))}
