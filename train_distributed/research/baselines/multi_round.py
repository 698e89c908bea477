"""The learners of many rounds: ADMM and Charter, with the report of a release."""

from typing import Any

import torch
from torch import Tensor

from train_distributed.one_shot.model import Release
from train_distributed.one_shot.request import Noise
from train_distributed.privacy.promise import Privacy
from train_distributed.research.admm.learner import VARIANTS, connect, learn_by_admm
from train_distributed.research.baselines.task import Task
from train_distributed.research.charter.learner import SUMMED, charter_task, learn_by_charter
from train_distributed.research.charter.plan import check_budget
from train_distributed.research.options import AdmmOptions, CharterOptions
from train_distributed.research.rows import Rows, require_records

METHODS = (*VARIANTS, *SUMMED)
Options = AdmmOptions | CharterOptions


def train(task: Task, options: Options) -> Release:
    """One private model from all users' rows, by many rounds of messages.

    Args:
        task: rows, and the promise of all rounds together, for one replaced record.
        options: of the method.

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
    source, partition = task.source, task.users.partition
    problems = 1 if source.num_classes == 2 else source.num_classes
    if isinstance(options, AdmmOptions):  # before any row is read: a graph in pieces
        connect(options, partition.users, torch.Generator())
    else:  # more rounds than the rows allow
        planned = charter_task(options, partition, source.transform.dim, problems, task.privacy)
        check_budget(planned, options.rounds(source.transform.dim))
    given = source.transform, partition, source.num_classes, task.generator
    rows = Rows.of(task.users.embeddings, *given)
    task.spend()
    seeded = task.generator is not None  # what depends on private rows is for simulations only
    weights, report = learn_rows(
        rows, task.name, task.privacy, options, task.generator, measure_risk=seeded
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
        options: of the method.
        generator: of everything random; None draws from the operating system.
        measure_risk: whether to find the excess risk, which needs the minimiser.

    Raises:
        ValueError: a setting out of range.
    """
    require_records(method, privacy)
    if isinstance(options, AdmmOptions):
        return learn_by_admm(rows, method, privacy, options, generator, measure_risk)
    return learn_by_charter(rows, method, privacy, options, generator, measure_risk)


def only_noise(method: str, generator: torch.Generator | None) -> Noise:
    """The kind of noise that a method has."""
    return "discrete" if method == "charter-sum" and generator is None else "float"
