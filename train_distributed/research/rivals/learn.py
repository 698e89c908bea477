"""One model from all users' rows by any method: ours, or a rival of one round or of many."""

import time
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pretrain import check
from train_distributed.one_shot.model import Release, reading
from train_distributed.one_shot.registry import MANY_ROUNDS, METHODS
from train_distributed.one_shot.release import release_of, with_seconds
from train_distributed.one_shot.request import Noise, ReleaseRequest
from train_distributed.privacy.promise import Privacy
from train_distributed.research.rivals import averages, central, dp_fl, gradient_perturbation
from train_distributed.research.rivals.admm.learner import connect, learn_by_admm
from train_distributed.research.rivals.charter.learner import charter_task, learn_by_charter
from train_distributed.research.rivals.charter.plan import check_budget
from train_distributed.research.rivals.common import (
    UserRows,
    finish,
    refuse_users,
    require_records,
    spend,
    users_of,
)
from train_distributed.research.rivals.options import OPTIONS, AdmmOptions, CharterOptions

ManyRoundsOptions = AdmmOptions | CharterOptions


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
    """Model by a method that ours are compared with.

    Args:
        request: rows, promise and options; no noise means the only one that the method has.

    Raises:
        ValueError: an unknown method, a setting out of range, or what no release may rest on.
    """
    started, name = time.perf_counter(), str(request.method)
    check.one_of(ALL_METHODS, method=name)
    only = only_noise(name, request.generator) if name in MANY_ROUNDS else "discrete"
    transform, options = request.settings
    settled = replace(request, transform=transform, options=options, noise=request.noise or only)
    released = train(settled)
    return with_seconds(released.with_report(method=name, probabilities=reading(name)), started)


def train(request: ReleaseRequest) -> Release:
    """The release of a rival, with the request's transform, options and noise as they are.

    Raises:
        ValueError: an unknown option, a setting out of range, or what no release may rest on.
    """
    privacy, name = request.privacy, str(request.method)
    privacy.validate()
    kind = OPTIONS[name]
    if request.options.keys() - {each.name for each in fields(kind)}:
        raise ValueError(f"options must fit method {name!r}, got {sorted(request.options)}")
    options = kind(**request.options)
    checked = request.source.validate(
        privacy,
        discrete=request.noise == "discrete" and privacy.private,
        vouched=request.vouch_for_transform,
        allow_delta=request.allow_delta,
    )
    released = TRAINERS[name](request, options)
    report = released.report | checked.report
    for reason in checked.unsuitable:
        if reason not in report.unsuitable_because:
            report = report.with_reason(reason)
    return replace(released, report=report)


def train_by_many_rounds(request: ReleaseRequest, options: ManyRoundsOptions) -> Release:
    """Model by ADMM or Charter: many rounds of messages.

    Args:
        request: rows, and the promise of all rounds together, for one replaced record.
        options: of the method.

    Raises:
        ValueError: a setting out of range. Nothing has been computed then.
    """
    refuse_users(request)
    source, privacy, name = request.source, request.privacy, str(request.method)
    require_records(name, privacy)
    seeded = request.generator is not None
    if request.noise != (only := only_noise(name, request.generator)):
        seed = "with a seed" if seeded else "without a seed"
        raise ValueError(
            f"noise must be {only!r} for method {name!r} {seed}, got {request.noise!r}"
        )
    held = users_of(request)
    problems = 1 if source.num_classes == 2 else source.num_classes
    if isinstance(options, AdmmOptions):  # before any row is read: a graph in pieces
        connect(options, held.partition.users, torch.Generator())
    else:  # more rounds than the rows allow
        planned = charter_task(options, held.partition, source.transform.dim, problems, privacy)
        check_budget(planned, options.rounds(source.transform.dim))
    rows = UserRows.of(
        held.embeddings, source.transform, held.partition, source.num_classes, request.generator
    )
    spend(request)
    # what depends on private rows is for simulations only
    weights, report = learn_rows(
        rows, name, privacy, options, request.generator, measure_risk=seeded
    )
    if not seeded:
        report.pop("simulation_only")
    noise = request.noise if privacy.private else "none"
    return finish(request, weights, privacy.report() | report | {"noise": noise})


def learn_rows(
    rows: UserRows,
    method: str,
    privacy: Privacy,
    options: ManyRoundsOptions,
    generator: torch.Generator | None,
    *,
    measure_risk: bool = True,
) -> tuple[Tensor, dict[str, Any]]:
    """(d, K) weights by ADMM or Charter, and their costs, of rows that are already transformed.

    Args:
        rows: of all users.
        method: "admm-dual", "admm-primal", "charter" or "charter-sum".
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
    """The kind of noise that a method of many rounds has."""
    return "discrete" if method == "charter-sum" and generator is None else "float"


TRAINERS: Mapping[str, Callable[..., Release]] = {
    "dp-fl": dp_fl.train,
    "output-perturbation": averages.average_minimisers,
    "gradient-perturbation": gradient_perturbation.train,
    "dp-svm-smo": averages.average_dual_svms,
    "amp": central.train_amp,
    "centralised-softmax": partial(central.train_as_one_user, head="softmax"),
    "centralised-svm": partial(central.train_as_one_user, head="svm"),
    "non-private-softmax": central.train_softmax,
    "non-private-svm": central.train_svm,
    **dict.fromkeys(MANY_ROUNDS, train_by_many_rounds),
}
ALL_METHODS = (*METHODS, *TRAINERS)
