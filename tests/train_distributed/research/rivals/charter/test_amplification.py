"""Charter's noise: the paper's constants, the tight account, and what it rests on."""

import math

import numpy as np
import pytest

from train_distributed import accounting
from train_distributed.research.rivals.charter import amplification
from train_distributed.research.rivals.charter.plan import CharterTask, make_plan


def plan(*, rounds, epsilon, rows=3000, delta=1e-5, constants="tight"):
    task = CharterTask(
        clients=10, rows=rows, dimension=30, epsilon=epsilon, delta=delta, diameter=1.0
    )
    return make_plan(task, rounds=rounds, gradient_clip=1.0, loss_clip=1.0, constants=constants)


def test_the_paper_constants():
    # √(1080 · 100) ln(2.5e5) / 300 and √(40 · 100) ln(2.5e7) / 300
    paper = plan(rounds=100, epsilon=0.1, constants="paper")
    assert paper.gradient_std == pytest.approx(13.6155, abs=1e-4)
    assert paper.loss_std == pytest.approx(3.5912, abs=1e-4)


@pytest.mark.parametrize(
    ("rounds", "epsilon", "delta"),
    [
        (10, 0.4, 1e-5),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (30, 0.25, 1e-5),
                (100, 0.1, 1e-5),
                (100, 0.14, 1e-3),
                (100, 0.14, 1e-7),
                (300, 0.08, 1e-5),
                (1000, 0.04, 1e-5),
                (100, 0.03, 1e-7),
            )
        ),
    ],
)
def test_tight_noise_is_a_tenth_and_a_quarter_where_the_paper_proves_its_own(
    rounds, epsilon, delta
):
    tight = plan(rounds=rounds, epsilon=epsilon, delta=delta)
    paper = plan(rounds=rounds, epsilon=epsilon, delta=delta, constants="paper")
    assert tight.gradient_std <= paper.gradient_std / 10
    assert tight.loss_std <= paper.loss_std / 4


def test_tight_noise_meets_its_epsilon():
    tight = plan(rounds=30, epsilon=0.25)
    multiplier = tight.gradient_std / (2 / tight.batch)
    assert amplification.composed_epsilon(multiplier, 1e-5, tight.rates) <= 0.25
    assert amplification.composed_epsilon(0.98 * multiplier, 1e-5, tight.rates) > 0.25
    moved = 1 / tight.verification_rows
    assert accounting.epsilon(1e-5, tight.loss_std / moved, 30) <= 0.25 * (1 + 1e-12)


def test_no_amplification_where_a_record_used_once_is_cheaper():
    rates = (0.5, 1.0)  # half the rows in the first round, the others in the second
    assert amplification.sampled_noise_multiplier(1.0, 1e-5, rates) == accounting.noise_multiplier(
        1.0, 1e-5
    )


def test_unequal_rates_cost_between_their_extremes():
    def cost(rates):
        return amplification.composed_epsilon(2.0, 1e-5, rates)

    mixed = cost((0.01,) * 30 + (0.02,) * 30)
    assert cost((0.01,) * 60) < mixed <= cost((0.02,) * 60)


def posterior_rate(rounds, share, sigma, seed):
    """The chance, given earlier messages, that the record is in a round: the proof's θ_k."""
    draw = np.random.default_rng(seed)
    target = draw.integers(rounds * 2)  # half of all places are never used
    mass, passed, thetas = 1.0, 0.0, []
    for k in range(rounds):
        thetas.append(share / mass)
        message = sigma * draw.standard_normal() + (target == k)
        ratio = math.exp((message - 0.5) / sigma**2)
        mass += share * (ratio - 1)
        passed += share
        assert mass >= 1 - passed - 1e-12
    return np.array(thetas)


def test_the_posterior_never_exceeds_the_rate_that_is_charged():
    rounds, share = 20, 1 / 40
    charged = share / (1 - share * np.arange(rounds))
    for seed in range(200):
        assert (posterior_rate(rounds, share, 0.8, seed) <= charged * (1 + 1e-12)).all()


def test_bits_follow_their_formulas():
    found = plan(rounds=30, epsilon=0.25)
    limit = 1 + found.gradient_std * math.sqrt(32 * math.log(40 * 10 * 30 * 30 / 0.01))
    inside = 2 * limit * 3000 * 0.25 / (math.sqrt(30) + 0.25 * math.sqrt(3000))
    assert found.gradient_bits == math.ceil(math.log2(inside))
    limit = 1 + found.loss_std * math.sqrt(2 * math.log(16 * 10 * 30 / 0.01))
    inside = 2 * limit * 3000 * 0.25 / (1 + 0.25 * math.sqrt(3000))
    assert found.loss_bits == math.ceil(math.log2(inside))
