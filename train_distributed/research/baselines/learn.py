"""One model from all users' rows by any method: ours, or one that we compare with."""

import time
from dataclasses import fields
from typing import Any

from train_distributed.one_shot.model import Release, reading
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.release import ReleaseRequest, with_seconds
from train_distributed.research import baselines
from train_distributed.research.baselines import multi_round

ALL_METHODS = (*METHODS, *baselines.BASELINES, *multi_round.METHODS)


def run_method(request: ReleaseRequest) -> Release:
    """Model by any method's name.

    The report of a simulation says under "simulation_only" how many seconds it took.

    Raises:
        ValueError: an unknown method, or as `release`.
    """
    started, name = time.perf_counter(), request.method
    if not isinstance(name, str) or name in METHODS:
        return with_seconds(request.release(), started)
    return run_rival(request, name)


def run_rival(request: ReleaseRequest, name: str) -> Release:
    """Model by a method that we compare with.

    Args:
        request: rows, promise and options; no noise means the only one that the method has.
        name: one of BASELINES or of the methods of many rounds.

    Raises:
        ValueError: an unknown method, a setting out of range, or what no release may rest on.
    """
    started = time.perf_counter()
    if name not in ALL_METHODS:
        raise ValueError(f"method must be one of {', '.join(ALL_METHODS)}, got {name!r}")
    many = name in multi_round.METHODS
    only = multi_round.only_noise(name, request.generator) if many else "discrete"
    given: dict[str, Any] = {each.name: getattr(request, each.name) for each in fields(request)}
    given |= {"noise": request.noise or only}
    released = baselines.train(
        baselines.Task(**given, name=name), request.facts.options(name, request.options)
    )
    released = released.with_report(method=name, probabilities=reading(name))
    return with_seconds(released, started)
