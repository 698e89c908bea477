"""The best attacker against a promise: it knows two neighbours, and tells which one was learned."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from train_distributed import accounting
from train_distributed.one_shot.report_file import Report

# guard: ζ below which the discrete sum's curve is the continuous one, to all shown digits
TINY = 1e-12


def gaussian_mu(report: Report) -> float | None:
    """μ of μ-Gaussian differential privacy (Dong, Roth and Su 2022), √C/σ; None: no such promise.

    Telling neighbours apart is then no easier than telling N(0, 1) from N(μ, 1).
    """
    if report.privacy_curve != "gaussian" or report.log10_zeta >= math.log10(TINY):
        return None
    return math.sqrt(report.compositions) / report.noise_multiplier


def true_positives(report: Report, false_positives: NDArray[np.float64]) -> NDArray[np.float64]:
    """Largest share of records learned from that a test finds, by its share of false alarms.

    With α of these: min(e^ε α + δ, 1 − e^−ε (1 − δ − α)) (Kairouz, Oh and Viswanath 2015), and of a
    Gaussian mechanism Φ(Φ⁻¹(α) + μ).
    """
    alpha, epsilon = np.asarray(false_positives, float), min(report.epsilon, 700.0)
    found = np.minimum(
        math.exp(epsilon) * alpha + report.delta,
        1 - math.exp(-epsilon) * np.maximum(1 - report.delta - alpha, 0),
    )
    if (mu := gaussian_mu(report)) is not None:
        found = np.minimum(found, ndtr(ndtri(alpha) + mu) + 4 * TINY)
    return np.minimum(found, 1.0)


def best_guess(report: Report) -> float:
    """Probability that the best attacker tells two neighbours apart, at even odds.

    ½(1 + TV), rounded up to three decimals. Of a Gaussian mechanism TV is δ(0) of its curve; (ε, δ)
    alone bounds TV by (e^ε − 1 + 2δ)/(e^ε + 1) (Kairouz, Oh and Viswanath 2015).
    """
    epsilon = report.epsilon
    apart = math.tanh(epsilon / 2) + 2 * report.delta / (1 + math.exp(min(epsilon, 700.0)))
    if gaussian_mu(report) is not None:
        curve = accounting.delta(TINY, report.noise_multiplier, report.compositions)
        apart = min(apart, curve + 4 * TINY)
    return min(1.0, math.ceil(1000 * (1 + apart) / 2) / 1000)
