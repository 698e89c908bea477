"""The learners of many rounds: ADMM and Charter, with the report of a release."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from pretrain import check
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.report import Noise
from train_distributed.privacy.promise import Privacy
from train_distributed.research.admm.learner import VARIANTS, AdmmOptions, learn_by_admm
from train_distributed.research.baselines.task import Task
from train_distributed.research.charter.learner import SUMMED, CharterOptions, learn_by_charter
from train_distributed.research.rows import Rows, require_records

METHODS = (*VARIANTS, *SUMMED)
Options = AdmmOptions | CharterOptions


def train(task: Task, **options: Any) -> Release:
    """One private model from all users' rows, by many rounds of messages.

    Args:
        task: rows, and the promise of all rounds together, for one replaced record.
        **options: fields of `AdmmOptions` or `CharterOptions`.

    Raises:
        ValueError: a setting out of range. Nothing has been computed then.
    """
    task.refuse_users()
    require_records(task.name, task.privacy)
    if task.noise != (only := only_noise(task.name, task.generator)):
        seed = "without a seed" if task.generator is None else "with a seed"
        raise ValueError(
            f"noise must be {only!r} for method {task.name!r} {seed}, got {task.noise!r}"
        )
    chosen = method_options(task.name, options)
    source, partition = task.source, task.users.partition
    problems = 1 if source.num_classes == 2 else source.num_classes
    chosen.check(partition, source.transform.dim, problems, task.privacy)
    given = source.transform, partition, source.num_classes, task.generator
    rows = Rows.of(task.users.embeddings, *given)
    task.spend()
    seeded = task.generator is not None  # what depends on private rows is for simulations only
    weights, report = learn_rows(
        rows, task.name, task.privacy, chosen, task.generator, measure_risk=seeded
    )
    if not seeded:
        report.pop("simulation_only")
    noise = task.noise if task.privacy.private else "none"
    return task.finish(weights, task.privacy.report() | report | {"noise": noise})


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
    require_records(method, privacy)
    if isinstance(options, AdmmOptions):
        return learn_by_admm(rows, method, privacy, options, generator, measure_risk)
    return learn_by_charter(rows, method, privacy, options, generator, measure_risk)


def method_options(method: str, options: Mapping[str, Any]) -> Options:
    """The options of a method from their names.

    Raises:
        ValueError: an unknown method or option, or a value out of range.
    """
    check.one_of(METHODS, method=method)
    kind = AdmmOptions if method in VARIANTS else CharterOptions
    if unknown := sorted(options.keys() - {each.name for each in fields(kind)}):
        raise ValueError(f"options must fit method {method!r}, got {unknown}")
    return kind(**options)


def only_noise(method: str, generator: torch.Generator | None) -> Noise:
    """The kind of noise that a method has."""
    return "discrete" if method == "charter-sum" and generator is None else "float"
