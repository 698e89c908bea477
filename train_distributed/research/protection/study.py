"""One study: estimate C1 and C2, solve the formulas, measure what they give, write it down."""

from collections.abc import Sequence
from dataclasses import dataclass

from tqdm import tqdm

from pretrain import check
from train_distributed.research.protection import exact_sums
from train_distributed.research.protection.closed_forms import Constants, Optimum, solve_all
from train_distributed.research.protection.estimate import c1_error, constants
from train_distributed.research.protection.measure import AttackBenchmark, Measurement
from train_distributed.research.protection.mechanisms import (
    Mechanism,
    Randomisation,
    Sparsification,
    Unprotected,
)
from train_distributed.research.protection.paillier import DEPLOYED_BITS, Packing
from train_distributed.research.protection.recommend import Candidate
from train_distributed.research.protection.settings import Facts, StudySettings
from train_distributed.research.protection.training import LEAST_MODELS, inverse_variances

PROTECTIONS = (Randomisation, exact_sums.Paillier, exact_sums.Shares, Sparsification)


def check_settings(settings: StudySettings, clients: int) -> None:
    """Checks everything that needs no data.

    Raises:
        ValueError: naming the setting.
    """
    check.within("[0, inf)", budget=settings.budget)
    check.positive(half_width=settings.half_width)
    check.at_least(DEPLOYED_BITS, key_bits=settings.key_bits)
    Packing(exact_sums.Shares().numbers(clients), settings.key_bits)
    check.at_least(2, servers=settings.servers)
    check.at_least(1, noise_levels=settings.noise_levels)
    check.at_least(LEAST_MODELS, variance_models=settings.variance_models)


@dataclass(frozen=True)
class Study:
    """Estimated constants, optima and measured points."""

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


def run_study(benchmark: AttackBenchmark, settings: StudySettings, variance_rounds: int) -> Study:
    """Estimates, solves, deploys and measures.

    Raises:
        ValueError: the budget is below what any mechanism reaches.
    """
    federation = benchmark.federation
    attack = benchmark.unprotected
    estimated = constants(attack, benchmark.blind)
    drawn = federation.models(settings.variance_models, variance_rounds, benchmark.seed + 1)
    spread = inverse_variances(federation, drawn, benchmark.seed)
    facts = Facts(federation.target.parameters, settings.half_width, spread)
    optima = solve_all(estimated, settings.budget, PROTECTIONS, facts)
    size = benchmark.update_size
    plans = [(o, *_deployed(o, size, settings)) for o in optima]
    points = 1 + sum((at is not None) + len(others) for _, at, others in plans)
    with tqdm(total=points, unit="point", disable=None) as bar:

        def measure(mechanism: Mechanism) -> Measurement:
            bar.set_postfix_str(f"{mechanism.name} {mechanism.parameter:.3g}")
            found = benchmark.measure(mechanism)
            bar.update()
            return found

        unprotected = measure(Unprotected())
        candidates = tuple(
            Candidate(
                optimum, None if at is None else measure(at), tuple(measure(o) for o in others)
            )
            for optimum, at, others in plans
        )
    return Study(estimated, c1_error(attack), spread, unprotected, candidates)


def _deployed(
    optimum: Optimum, update_size: float, settings: StudySettings
) -> tuple[Mechanism | None, Sequence[Mechanism]]:
    """The mechanism at its optimum, if it has one, and at other parameters.

    Where the formula has nothing to deploy, exact sums are measured as they would run without it.
    """
    (kind,) = (each for each in PROTECTIONS if each.name == optimum.mechanism)
    chosen = optimum.log_parameter
    at = None if chosen is None else kind.deploy(chosen, settings)
    others = kind.levels(update_size, settings)
    return at, others or ([] if at else [kind.deploy(None, settings)])
