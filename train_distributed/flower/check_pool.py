"""Checks of reports by several processes, each with a slice of a batch; their sums are added."""

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial

from train_distributed.flower.transport.sandbox import leash
from train_distributed.secure_sum.aggregator import Check
from train_distributed.secure_sum.reports import Checked, Checker


@contextmanager
def spread(check: Checker, processes: int) -> Iterator[Check]:
    """Spreads a check over processes, each of which takes a slice of the messages.

    Raises:
        ValueError: processes < 1.
    """
    if processes < 1:
        raise ValueError(f"processes must be >= 1, got {processes}")
    if processes == 1:
        yield check
        return
    fork = multiprocessing.get_context("fork")  # before there is any thread; keys are not sent
    begin = (check, os.getpid())
    with ProcessPoolExecutor(processes, fork, initializer=_begin, initargs=begin) as pool:
        list(pool.map(_slice, [[]] * processes))  # starts them
        yield partial(_spread, pool, processes)


def _spread(pool: ProcessPoolExecutor, processes: int, messages: Sequence[bytes]) -> Checked:
    try:
        slices = list(pool.map(_slice, [messages[p::processes] for p in range(processes)]))
    except BrokenProcessPool as error:
        raise OSError("all processes of an aggregator must run, one was killed") from error
    found = [slices[place % processes].found[place // processes] for place in range(len(messages))]
    total = slices[0].total
    for each in slices[1:]:
        total += each.total
    return Checked(found, total)


_checks: list[Checker] = []  # of a process of the pool


def _begin(check: Checker, parent: int) -> None:
    leash(parent)
    _checks.append(check)


def _slice(messages: Sequence[bytes]) -> Checked:
    return _checks[0](messages)
