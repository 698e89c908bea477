"""One model from all users' rows by any method: ours, or one that we compare with."""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from pretrain import check
from train_distributed.one_shot.model import Release, reading
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.release import release_of, with_seconds
from train_distributed.one_shot.request import ReleaseRequest
from train_distributed.research.baselines import (
    amp,
    central,
    dp_fl,
    dual_svm,
    gradient_perturbation,
    multi_round,
    output_perturbation,
)
from train_distributed.research.baselines.task import Task
from train_distributed.research.options import OPTIONS

TRAINERS: Mapping[str, Callable[..., Release]] = {
    "dp-fl": dp_fl.train,
    "output-perturbation": output_perturbation.train,
    "gradient-perturbation": gradient_perturbation.train,
    "dp-svm-smo": dual_svm.train,
    "amp": amp.train,
    "centralised-softmax": partial(central.train_as_one_user, head="softmax"),
    "centralised-svm": partial(central.train_as_one_user, head="svm"),
    "non-private-softmax": central.train_softmax,
    "non-private-svm": central.train_svm,
}
BASELINES = tuple(TRAINERS)
ALL_METHODS = (*METHODS, *BASELINES, *multi_round.METHODS)


def run_method(request: ReleaseRequest) -> Release:
    """Model by any method's name.

    The report of a simulation says under "simulation_only" how many seconds it took.

    Raises:
        ValueError: an unknown method, or as `release`.
    """
    if isinstance(request.method, str) and request.method not in METHODS:
        return run_rival(request)
    started = time.perf_counter()
    return with_seconds(release_of(request), started)


def run_rival(request: ReleaseRequest) -> Release:
    """Model by a method that we compare with: a baseline, or one of many rounds.

    Args:
        request: rows, promise and options; no noise means the only one that the method has.

    Raises:
        ValueError: an unknown method, a setting out of range, or what no release may rest on.
    """
    started, name = time.perf_counter(), str(request.method)
    check.one_of(ALL_METHODS, method=name)
    many = name in multi_round.METHODS
    only = multi_round.only_noise(name, request.generator) if many else "discrete"
    given: dict[str, Any] = {each.name: getattr(request, each.name) for each in fields(request)}
    transform, options = request.settings
    given |= {"noise": request.noise or only, "transform": transform}
    released = train(Task(**given), options)
    return with_seconds(released.with_report(method=name, probabilities=reading(name)), started)


def train(task: Task, options: Mapping[str, Any]) -> Release:
    """The release of the task's method, of rows that are checked.

    Raises:
        ValueError: an unknown option, a setting out of range, or what no release may rest on.
    """
    task.privacy.validate()
    kind = OPTIONS[task.name]
    if options.keys() - {each.name for each in fields(kind)}:
        raise ValueError(f"options must fit method {task.name!r}, got {sorted(options)}")
    chosen = kind(**options)
    checked = task.validate()
    released = TRAINERS.get(task.name, multi_round.train)(task, chosen)
    report = released.report | checked.report
    for reason in checked.unsuitable:
        if reason not in report.unsuitable_because:
            report = report.with_reason(reason)
    return replace(released, report=report)
