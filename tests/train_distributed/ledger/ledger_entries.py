"""Entries of a ledger: a Gaussian one of ε 1, and one that is only stated."""

from dataclasses import replace

from train_distributed.ledger.entry import Entry

ROWS = {"kind": "release", "data": "d" * 64, "unit": "record", "epsilon": 1.0, "delta": 1e-5}
NOISE = {"method": "least-squares", "noise": "discrete", "sigma": 3.7307, "sensitivity": 1.0}
GAUSSIAN = Entry(**ROWS, **NOISE)
STATED = replace(GAUSSIAN, sigma=None, sensitivity=None, epsilon=0.5, delta=1e-6)
