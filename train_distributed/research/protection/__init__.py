"""Choosing a protection: what leaks, what it costs, which parameter suffices.

`closed_forms` solves the formulas of Zhang et al. 2024 and says what they are worth; `mechanisms`
and `exact_sums` protect real messages; `inversion` attacks them; `estimate` turns attacks into C1,
C2 and measured leakage; `recommend` and `study` put them together.
"""

from train_distributed.research.protection.closed_forms import Constants, Optimum
from train_distributed.research.protection.estimate import Leakage, Recoveries, constants, leakage
from train_distributed.research.protection.exact_sums import Paillier, Shares
from train_distributed.research.protection.inversion import Guess, Observation, invert
from train_distributed.research.protection.measure import Laboratory, Measurement
from train_distributed.research.protection.mechanisms import (
    Randomisation,
    Sparsification,
    Unprotected,
)
from train_distributed.research.protection.recommend import Preference, pareto
from train_distributed.research.protection.similarity import Similarity
from train_distributed.research.protection.study import Study, StudySettings, run_study
from train_distributed.research.protection.training import FederatedTraining

__all__ = [
    "Constants",
    "FederatedTraining",
    "Guess",
    "Laboratory",
    "Leakage",
    "Measurement",
    "Observation",
    "Optimum",
    "Paillier",
    "Preference",
    "Randomisation",
    "Recoveries",
    "Shares",
    "Similarity",
    "Sparsification",
    "Study",
    "StudySettings",
    "Unprotected",
    "constants",
    "invert",
    "leakage",
    "pareto",
    "run_study",
]
