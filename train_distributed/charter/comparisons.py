"""The noise that Charter needs, beside the paper's constants and beside what may be possible."""

import numpy as np

from train_distributed.charter import amplification
from train_distributed.charter.plan import Task, make_plan


def compare_noise() -> list[dict[str, float]]:
    """Noise of the tight account over that of the paper's constants, where those are proven."""
    found = []
    for rounds, epsilon in ((10, 0.4), (30, 0.25), (100, 0.1), (300, 0.08)):
        task = Task(clients=10, rows=3000, dimension=30, epsilon=epsilon, delta=1e-5, diameter=1.0)
        tight, paper = (
            make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0, constants=constants)
            for constants in ("tight", "paper")
        )
        found.append(
            {
                "rounds": rounds,
                "epsilon": epsilon,
                "learning": tight.gradient_std / paper.gradient_std,
                "verification": tight.loss_std / paper.loss_std,
            }
        )
    return found


def compare_accounts() -> list[dict[str, float]]:
    """δ that the composition account promises, and an estimate of what one random round needs."""
    found = []
    for rounds, multiplier, delta in ((20, 1.0, 1e-2), (100, 1.0, 1e-3), (100, 0.7, 1e-2)):
        task = Task(
            clients=1, rows=30 * rounds, dimension=1, epsilon=1.0, delta=delta, diameter=1.0
        )
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        epsilon = amplification.composed_epsilon(multiplier, delta, plan.rates)
        estimate, error = amplification.estimate_random_round_delta(
            epsilon,
            multiplier,
            np.array(plan.fresh) / plan.learning_rows,
            draws=100_000,
            generator=np.random.default_rng(0),
        )
        found.append(
            {
                "rounds": rounds,
                "noise_multiplier": multiplier,
                "epsilon": epsilon,
                "delta_by_composition": delta,
                "delta_estimated_once": estimate,
                "standard_error": error,
            }
        )
    return found
