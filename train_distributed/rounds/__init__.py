"""Learners of many rounds under one call: decentralised ADMM, and Charter."""

from train_distributed.rounds.cutting import CharterOptions
from train_distributed.rounds.decentralised import AdmmOptions
from train_distributed.rounds.learn import (
    METHODS,
    Options,
    learn,
    learn_rows,
    method_options,
    simulate,
)
from train_distributed.rounds.rows import Rows

__all__ = [
    "METHODS",
    "AdmmOptions",
    "CharterOptions",
    "Options",
    "Rows",
    "learn",
    "learn_rows",
    "method_options",
    "simulate",
]
