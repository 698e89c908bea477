"""The noise that Charter needs, compared with the paper's and with what may be possible."""

import numpy as np

from train_distributed.research.charter import amplification
from train_distributed.research.charter.plan import CharterTask, make_plan


def compare_noise() -> list[dict[str, float]]:
    """Noise of the tight account over that of the paper's constants, where those are proven."""
    found = []
    for rounds, epsilon in ((10, 0.4), (30, 0.25), (100, 0.1), (300, 0.08)):
        task = CharterTask(
            clients=10, rows=3000, dimension=30, epsilon=epsilon, delta=1e-5, diameter=1.0
        )
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


def compare_accounts(draws: int = 100_000) -> list[dict[str, float]]:
    """ε that the composition account promises, and what the same noise may really be worth.

    At the same δ: the second number is an estimate for one pair of data sets, and no promise.
    """
    found = []
    for rounds, multiplier, delta in ((20, 1.0, 1e-3), (100, 1.0, 1e-3), (100, 0.7, 1e-3)):
        task = CharterTask(
            clients=1, rows=30 * rounds, dimension=1, epsilon=1.0, delta=delta, diameter=1.0
        )
        plan = make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0)
        ratios = amplification.random_round_ratios(
            multiplier,
            np.array(plan.fresh) / plan.learning_rows,
            draws=draws,
            generator=np.random.default_rng(0),
        )
        estimate, error = amplification.estimate_epsilon(ratios, delta)
        found.append(
            {
                "rounds": rounds,
                "noise_multiplier": multiplier,
                "delta": delta,
                "epsilon_by_composition": amplification.composed_epsilon(
                    multiplier, delta, plan.rates
                ),
                "epsilon_estimated_once": estimate,
                "standard_error": error,
            }
        )
    return found
