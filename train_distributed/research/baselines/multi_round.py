"""One call for the learners of many rounds, with the report of a release."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import TRAIN
from train_distributed.one_shot.intake import admit, check_partition, known_classes
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.report import Noise, class_names, reported, suitability, versions
from train_distributed.one_shot.users import own_partition
from train_distributed.partition import Partition
from train_distributed.privacy.promise import Privacy
from train_distributed.research.admm.learner import VARIANTS, AdmmOptions, learn_by_admm
from train_distributed.research.charter.learner import SUMMED, CharterOptions, learn_by_charter
from train_distributed.research.rows import Rows, require_records

METHODS = (*VARIANTS, *SUMMED)
Options = AdmmOptions | CharterOptions


def learn(
    embeddings: EmbeddingSet,
    method: str,
    privacy: Privacy,
    *,
    transform: PublicTransform | None = None,
    num_classes: int | None = None,
    partition: Partition | None = None,
    noise: Noise | None = None,
    generator: torch.Generator | None = None,
    vouch_for_transform: bool = False,
    **options: Any,
) -> Release:
    """One private model from all users' rows, by many rounds of messages.

    Args:
        embeddings: what users hold: the training rows; the test rows give the accuracy.
        method: one of METHODS.
        privacy: (ε, δ) of all rounds together, for one replaced record.
        transform: the public transform of the rows; None: only the constant 1 and a clip to 1.
        num_classes: K, public; None: as many as the set's class names.
        partition: which user holds which training row; None: as the set's own users say.
        noise: None: as the method allows; "discrete" is possible for "charter-sum" only.
        generator: makes a simulation reproducible; None draws from the operating system.
        vouch_for_transform: as in `train_distributed.release`.
        **options: fields of `AdmmOptions` or `CharterOptions`.

    Raises:
        ValueError: a setting out of range. Nothing has been computed then.
    """
    privacy.validate()
    check_method(method)
    require_records(method, privacy)
    noise = _noise(method, noise, seeded=generator is not None)
    chosen = method_options(method, options)
    transform = PublicTransform.identity(embeddings.dim) if transform is None else transform
    classes = known_classes(embeddings, num_classes)
    users = own_partition(embeddings) if partition is None else partition
    chosen.check(users, transform.dim, 1 if classes == 2 else classes, privacy)
    check_partition(users, int((embeddings.split == TRAIN).sum()))
    discrete = noise == "discrete" and privacy.private
    admitted = admit(
        embeddings, transform, num_classes, discrete=discrete, vouched=vouch_for_transform
    )
    rows = Rows.of(embeddings, transform, users, classes)
    seeded = generator is not None  # what depends on private rows is for simulations only
    weights, costs = learn_rows(rows, method, privacy, chosen, generator, measure_risk=seeded)
    names = class_names(embeddings.declared_classes, classes)
    report = (
        {"method": method} | privacy.report() | costs | {"users": users.users, "rows": len(rows.y)}
    )
    report |= {"noise": noise if privacy.private else "none"}
    report |= admitted.report | {"versions": versions()}
    if not seeded:
        report.pop("simulation_only")
    verdict = suitability(privacy, noise, seeded=seeded, others=admitted.unsuitable)
    return reported(Release(weights, transform, names), report, verdict, embeddings)


def learn_rows(
    rows: Rows,
    method: str,
    privacy: Privacy,
    options: Options,
    generator: torch.Generator | None,
    *,
    measure_risk: bool = True,
) -> tuple[Tensor, dict[str, Any]]:
    """(d, K) weights and their costs; the same for rows that are already transformed.

    Args:
        rows: of all users.
        method: one of METHODS.
        privacy: (ε, δ) of all rounds together.
        options: of the method, see `method_options`.
        generator: of everything random; None draws from the operating system.
        measure_risk: whether to find the excess risk, which needs the minimiser.

    Raises:
        ValueError: a setting out of range.
    """
    if isinstance(options, AdmmOptions):
        learned = learn_by_admm(rows, method, privacy, options, generator, measure_risk)
    else:
        learned = learn_by_charter(rows, method, privacy, options, generator, measure_risk)
    return learned


def simulate(
    rows: Rows,
    method: str,
    promises: Iterable[Privacy],
    options: Options,
    generator: torch.Generator,
) -> Iterator[Tensor]:
    """(d, K) weights, one run for every promise."""
    for promise in promises:
        yield learn_rows(rows, method, promise, options, generator, measure_risk=False)[0]


def method_options(method: str, options: Mapping[str, Any]) -> Options:
    """The options of a method from their names.

    Raises:
        ValueError: an unknown method or option, or a value out of range.
    """
    check_method(method)
    try:
        return AdmmOptions(**options) if method in VARIANTS else CharterOptions(**options)
    except TypeError as error:
        raise ValueError(f"options must fit method {method!r}, got {sorted(options)}") from error


def check_method(method: str) -> None:
    """Raises ValueError for a method that is not one of METHODS."""
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")


def _noise(method: str, noise: Noise | None, *, seeded: bool) -> Noise:
    discrete = method == "charter-sum" and not seeded
    if noise is None:
        return "discrete" if discrete else "float"
    if noise == "discrete" and not discrete:
        raise ValueError(
            "noise must be 'float' for all methods of many rounds but an unseeded 'charter-sum', "
            f"got 'discrete' for {method!r}"
        )
    if noise == "float" and discrete:
        raise ValueError("noise must be 'discrete' for 'charter-sum' without a seed, got 'float'")
    return noise
