"""One study: estimate C1 and C2, solve the formulas, measure what they give, write it down."""

import math
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from train_distributed.research.protection import closed_forms as forms
from train_distributed.research.protection import exact_sums
from train_distributed.research.protection import mechanisms as protect
from train_distributed.research.protection.closed_forms import Constants, Optimum
from train_distributed.research.protection.estimate import c1_error, constants
from train_distributed.research.protection.measure import Laboratory, Measurement
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing
from train_distributed.research.protection.recommend import Candidate, solve_all
from train_distributed.research.protection.training import inverse_variances

KEEPS = (0.9, 0.5, 0.2, 0.05)  # ρ that are measured beside ρ*
SPREAD = 16.0  # noise levels span the update's size over and times this


@dataclass(frozen=True)
class StudySettings:
    """What the formulas need beside C1 and C2."""

    budget: float
    half_width: float  # δ
    key_bits: int
    servers: int
    noise_levels: int
    variance_models: int

    def validate(self, clients: int) -> None:
        """Checks everything that needs no data.

        Raises:
            ValueError: naming the setting.
        """
        forms.check_budget(self.budget)
        forms.PaillierBound(1, self.half_width)
        if self.key_bits < DEPLOYED_BITS:
            raise ValueError(f"key_bits must be >= {DEPLOYED_BITS}, got {self.key_bits}")
        Packing(exact_sums.Shares().numbers(clients), self.key_bits)
        if self.servers < 2:
            raise ValueError(f"servers must be >= 2, got {self.servers}")
        if self.noise_levels < 1:
            raise ValueError(f"noise_levels must be >= 1, got {self.noise_levels}")
        if self.variance_models < 6:
            raise ValueError(f"variance_models must be >= 6, got {self.variance_models}")


@dataclass(frozen=True)
class Study:
    """What was found."""

    constants: Constants
    c1_error: float  # Theorem 7.1 at 95 %; inf where vacuous
    inverse_variances: float  # A
    unprotected: Measurement
    candidates: tuple[Candidate, ...]

    @property
    def points(self) -> list[Measurement]:
        """Everything that was measured, the unprotected wire first, each point once."""
        found = [self.unprotected]
        for each in self.candidates:
            found += [p for p in (each.at_optimum, *each.others) if p is not None]
        return found


def run_study(laboratory: Laboratory, settings: StudySettings, variance_rounds: int) -> Study:
    """Estimates, solves, deploys and measures.

    Raises:
        ValueError: the budget is below what any mechanism reaches.
    """
    federation = laboratory.federation
    m = federation.surface.parameters
    attack = laboratory.unprotected
    estimated = constants(attack, laboratory.blind)
    drawn = federation.models(settings.variance_models, variance_rounds, laboratory.seed + 1)
    spread = inverse_variances(federation, drawn, laboratory.seed)
    optima = solve_all(
        estimated,
        settings.budget,
        [
            forms.RandomisationBound(spread),
            forms.PaillierBound(m, settings.half_width),
            forms.SharesBound(m, settings.half_width),
            forms.CompressionBound(m),
        ],
    )
    plans = [
        (optimum, deploy(optimum, settings), alternatives(optimum, laboratory, settings))
        for optimum in optima
    ]
    points = 1 + sum((at is not None) + len(others) for _, at, others in plans)
    with tqdm(total=points, unit="point", disable=None) as bar:

        def measure(mechanism: protect.Mechanism) -> Measurement:
            bar.set_postfix_str(f"{mechanism.name} {mechanism.parameter:.3g}")
            found = laboratory.measure(mechanism)
            bar.update()
            return found

        unprotected = measure(protect.Unprotected())
        candidates = tuple(
            Candidate(
                optimum, None if at is None else measure(at), tuple(measure(o) for o in others)
            )
            for optimum, at, others in plans
        )
    return Study(estimated, c1_error(attack), spread, unprotected, candidates)


def deploy(optimum: Optimum, settings: StudySettings) -> protect.Mechanism | None:
    """What really runs for g*: never a key below 2,048 bits, never a mask below all words.

    None where the formula has nothing to deploy (`unconstrained`, `infeasible`).

    Raises:
        ValueError: n* or r* beyond what the wire can carry.
    """
    if optimum.log_parameter is None:
        return None
    if optimum.mechanism == "randomisation":
        return protect.Randomisation(math.exp(optimum.log_parameter))
    if optimum.mechanism == "compression":
        return protect.Sparsification(math.exp(optimum.log_parameter))
    if optimum.mechanism == "paillier":
        needed = math.ceil(optimum.log_parameter / math.log(2))
        bits = max(settings.key_bits, 16 * math.ceil(needed / 16))
        return exact_sums.Paillier(key_bits=bits)
    shares = exact_sums.Shares(servers=settings.servers)
    if optimum.log_parameter > math.log(shares.parameter):
        raise ValueError(
            f"r* must be <= {shares.parameter:g}, the largest mask of a 64-bit word, "
            f"got e^{optimum.log_parameter:g}"
        )
    return shares


def alternatives(
    optimum: Optimum, laboratory: Laboratory, settings: StudySettings
) -> list[protect.Mechanism]:
    """Other parameters of the mechanism that are measured: the trade-off around the optimum.

    Where the formula has nothing to deploy, the exact mechanisms are measured as they would run.
    """
    if optimum.mechanism == "randomisation":
        levels = np.geomspace(1 / SPREAD, SPREAD, settings.noise_levels)
        return [
            protect.Randomisation(float((level * laboratory.update_size) ** 2)) for level in levels
        ]
    if optimum.mechanism == "compression":
        return [protect.Sparsification(keep) for keep in KEEPS]
    if optimum.log_parameter is not None:
        return []
    if optimum.mechanism == "paillier":
        return [exact_sums.Paillier(key_bits=settings.key_bits)]
    return [exact_sums.Shares(servers=settings.servers)]
