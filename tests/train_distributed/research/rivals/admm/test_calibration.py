"""Noise rates by hand, composition, and audits that know the noise density."""

import math

import pytest
import scipy.stats
import torch

from tests.train_distributed.research.audit.rounds import admm as audit
from tests.train_distributed.research.audit.rounds.lower_bound import epsilon_below
from train_distributed.research.rivals.admm import calibration
from train_distributed.research.rivals.admm.algorithm import AdmmSettings


def test_noise_rates_by_hand():
    # B/C (ρ + 2ηN) = 100 · .45 = 45;  α̂ = 1 - 2 ln(1 + .25/45) = .98891964;  ζ = α̂/2.
    assert calibration.dual_noise(1.0, 100, 1.0, 0.45) == pytest.approx((0.49445982, 0), abs=1e-8)
    # 2 ln(1 + .25/.043) = 3.84 > 1, so Φ = .25/(e^.25 - 1) - .043 = .88020292 - .043;  ζ = 1/4.
    assert calibration.dual_noise(1.0, 1, 1.0, 0.043) == pytest.approx((0.25, 0.83720292), abs=1e-8)
    assert calibration.primal_noise(0.4, 30, 6.0, 0.1) == pytest.approx(0.1)  # .1 · 30 · .4 / 12


def largest_dual_loss(settings, alpha, rows, neighbours, *, doubled=False):
    """The largest |privacy loss| found over pairs and outputs of one dual-perturbed step.

    `doubled` uses the listing's ζ = α̂ instead of α̂/2: half the noise, which must be caught.
    """
    curvature = settings.rho + 2 * settings.eta * neighbours
    zeta, phi = calibration.dual_noise(alpha, rows, settings.loss_weight, curvature)
    worst = 0.0
    for angle in (math.pi, math.pi - 1e-3, 3.1, 3.0, 2.5, 2.0, math.pi / 2, 0.1):
        pair = audit.worst_pair(rows, angle)
        turn = torch.linspace(-math.pi, math.pi, 61, dtype=torch.float64)
        reach = torch.logspace(-2, 6, 25, dtype=torch.float64)
        outputs = (reach[:, None, None] * torch.stack([turn.cos(), turn.sin()], -1)).flatten(0, 1)
        # Whatever the dual variable is, some linear term puts the noise across the difference.
        for aim in (-1.0, 0.0, 1.0):
            centre = -(curvature + phi) * outputs
            side = torch.tensor([aim, 0.0], dtype=torch.float64) * 1e3 * settings.loss_weight / rows
            losses = audit.dual_loss(
                pair,
                outputs,
                centre + side,
                loss_weight=settings.loss_weight,
                quadratic=curvature + phi,
                zeta=2 * zeta if doubled else zeta,
            )
            worst = max(worst, float(losses.abs().max()))
    return worst


@pytest.mark.parametrize("rows", [1, 3, 30])
@pytest.mark.parametrize(("rho", "eta"), [(0.05, 0.1), (0.003, 0.01)])
@pytest.mark.parametrize("alpha", [0.1, 1.0, 3.0])
def test_no_pair_and_output_of_a_dual_step_loses_more_than_alpha(rows, rho, eta, alpha):
    run = AdmmSettings(method="dvp", iterations=1, rho=rho, eta=eta, alpha=alpha)
    assert largest_dual_loss(run, alpha, rows, 2) <= alpha


def test_the_listing_with_twice_the_rate_is_caught():
    run = AdmmSettings(method="dvp", iterations=1, rho=0.05, eta=0.1, alpha=1.0)
    assert largest_dual_loss(run, 1.0, 10, 2) > 0.85  # the search is strong enough
    assert largest_dual_loss(run, 1.0, 10, 2, doubled=True) > 1.7


@pytest.mark.parametrize("method", ["dvp", "pvp"])
def test_the_audit_of_a_whole_run_stays_below_the_composed_guarantee(method):
    run = AdmmSettings(method=method, iterations=4, rho=0.5, eta=0.1, alpha=0.5)
    composed = calibration.compose(run.alpha, run.iterations, 1e-5)
    pair, draw = audit.worst_pair(10, 3.0), torch.Generator().manual_seed(0)
    given = {"replicas": 40_000, "generator": draw}
    drawn = [audit.trajectory_losses(pair, run, 2, truth=truth, **given) for truth in (0, 1)]
    assert max(float(one.abs().max()) for one in drawn) <= composed.pure * (1 + 1e-6)
    below = epsilon_below(drawn[0], drawn[1], 1e-5)
    assert 0.2 < below <= composed.epsilon
    # A privacy loss is one: E[e^-loss] = 1 under its own truth.
    assert float((-drawn[0]).exp().mean()) == pytest.approx(1, abs=0.02)
    assert float(drawn[1].exp().mean()) == pytest.approx(1, abs=0.02)


def responses_delta(alpha, count, epsilon):
    """δ(ε) of `count` randomised responses, by their binomial law."""
    keep = math.exp(alpha) / (1 + math.exp(alpha))
    total = 0.0
    for yes in range(count + 1):
        p = scipy.stats.binom.pmf(yes, count, keep)
        q = scipy.stats.binom.pmf(yes, count, 1 - keep)
        total += max(0.0, p - math.exp(epsilon) * q)
    return total


@pytest.mark.parametrize(("alpha", "count"), [(0.01, 100), (0.1, 40), (1.0, 10)])
def test_composition_is_that_of_randomised_responses(alpha, count):
    composed = calibration.compose(alpha, count, 1e-5)
    assert composed.pure == pytest.approx(alpha * count)
    assert composed.epsilon <= composed.pure
    assert responses_delta(alpha, count, composed.epsilon * (1 + 1e-9)) <= 1e-5 * (1 + 1e-6)
    assert responses_delta(alpha, count, composed.epsilon * (1 - 1e-3)) > 1e-5


def test_bad_composition_is_named():
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        calibration.compose(1.0, 1, 0)
    with pytest.raises(ValueError, match="messages must be >= 1"):
        calibration.compose(1.0, 0, 1e-5)


def test_losses_whose_exponential_overflows_compose_to_no_less_than_their_sum_allows() -> None:
    """No warning, which would be an error here, and a sound bound."""
    for alpha, count in ((47.782557928714446, 15), (47.782557928714446, 30), (24.0, 30)):
        composed = calibration.compose(alpha, count, 4.3459120960706886e-11)
        assert 0 < composed.epsilon <= alpha * count * (1 + 1e-12)
        assert composed.epsilon >= alpha  # one of them alone gives away as much
