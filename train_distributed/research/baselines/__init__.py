"""Learners to compare with; the same arguments and reports as our own methods."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from train_distributed.one_shot.model import Release
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


def train(task: Task, options: Mapping[str, Any]) -> Release:
    """The release of the task's baseline or learner of many rounds, of rows that are checked.

    Raises:
        ValueError: an unknown option, a setting out of range, or what no release may rest on.
    """
    task.privacy.validate()
    checked = task.validate()
    try:
        released = TRAINERS.get(task.name, multi_round.train)(task, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ValueError(f"options must fit method {task.name!r}, got {sorted(options)}") from error
    report = released.report | checked.report
    for reason in checked.unsuitable:
        if reason not in report.unsuitable_because:
            report = report.with_reason(reason)
    return replace(released, report=report)


__all__ = ["BASELINES", "Task", "train"]
