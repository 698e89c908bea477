"""The privacy that is worth its accuracy (Sec. V of Zhang and Zhu)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import curve_fit, minimize_scalar

PUBLISHED = {"dvp": (0.2, 25.0), "pvp": (20.0, 20.0)}  # (c4, c5) of the paper
PRIVACY_WEIGHTS = (0.02, 6.0, 9.0, 1.0)  # ω1 … ω4


@dataclass(frozen=True)
class LossCurve:
    """L_acc(α) = c4 exp(-c5 α) + c6."""

    amplitude: float  # c4
    rate: float  # c5
    floor: float  # c6

    def __call__(self, alpha: np.ndarray | float) -> np.ndarray:
        """L_acc at one α or many."""
        return self.amplitude * np.exp(-self.rate * np.asarray(alpha)) + self.floor


def fit_loss_curve(alphas: np.ndarray, losses: np.ndarray, floor: float) -> LossCurve:
    """Least-squares c4, c5 >= 0 with c6 given.

    Args:
        alphas: (n,) α.
        losses: (n,) mean empirical loss at each.
        floor: c6.
    """

    def curve(alpha: np.ndarray, amplitude: float, rate: float) -> np.ndarray:
        return LossCurve(amplitude, rate, floor)(alpha)

    start = (max(1e-6, float(losses[0]) - floor), 1 / float(np.median(alphas)))
    (amplitude, rate), _ = curve_fit(
        curve, alphas, losses, p0=start, bounds=(0, np.inf), max_nfev=10_000
    )
    return LossCurve(float(amplitude), float(rate), floor)


def privacy_utility(alpha: np.ndarray | float) -> np.ndarray:
    """U_priv(α) = ω1 ln(ω2 / (ω3 α + ω4 α²)), which falls with α."""
    w1, w2, w3, w4 = PRIVACY_WEIGHTS
    alpha = np.asarray(alpha)
    return w1 * np.log(w2 / (w3 * alpha + w4 * alpha**2))


def best_alpha(curve: LossCurve, low: float, high: float) -> float:
    """The α that maximises U_priv(α) - L_acc(α) on [low, high].

    The range is part of the question: U_priv grows without bound as α falls to 0.

    Args:
        curve: L_acc.
        low: > 0.
        high: > low.
    """

    def cost(log_alpha: float) -> float:
        alpha = np.exp(log_alpha)
        return float(curve(alpha) - privacy_utility(alpha))

    grid = np.linspace(np.log(low), np.log(high), 401)  # two local maxima are usual
    best = int(np.argmin([cost(point) for point in grid]))
    around = grid[max(0, best - 1)], grid[min(400, best + 1)]
    found: Any = minimize_scalar(cost, bounds=around, method="bounded", options={"xatol": 1e-9})
    ends = (float(np.log(low)), float(np.log(high)), float(found.x))
    return float(np.exp(min(ends, key=cost)))
