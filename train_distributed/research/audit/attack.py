"""Two attacks: one release with many canaries, or many releases of two neighbours.

`one_run` measures Gaussian noise, in one release. By trials, either neighbour is released many
times, what was opened is projected, and the bound is how often one can tell: it assumes nothing of
the noise, and is far below the truth.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import beta, norm
from torch import Tensor
from tqdm import tqdm

from pretrain import check
from train_distributed import accounting
from train_distributed.research.audit.one_run import audit_once, most_canaries
from train_distributed.research.audit.target import Claim, Target
from train_distributed.research.audit.worst_case import Neighbours

TUNING = 0.2  # share of the trials that choose direction and threshold, and prove nothing
RIDGE = 1e-9  # of the noise covariance, relative: releases that share noise make it singular
CUTS = 201  # thresholds to choose from
TRIALS = 2000  # size: of each neighbour, where there are no canaries
Counts = int | np.ndarray


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Lower bounds that an attack proves, with the promise they are compared with."""

    claim: Claim
    clopper_pearson: float | None = None  # ε at δ is at least this, whatever the mechanism
    gaussian: float | None = None  # the same for a Gaussian curve; None: none is promised
    one_run: float | None = None  # the same for a sum whose noise is Gaussian, by one release
    confidence: float  # of all bounds together
    trials: int = 0  # releases of either data set
    canaries: int = 0  # in the one release
    pair: str = ""
    separation: float | None = None  # of projections: difference of means over standard deviation

    @property
    def epsilon(self) -> float:
        """The largest of the lower bounds."""
        return max(self.clopper_pearson or 0.0, self.gaussian or 0.0, self.one_run or 0.0)

    @property
    def broken(self) -> bool:
        """Whether more was learned than was promised."""
        return self.epsilon > self.claim.epsilon

    def as_dict(self) -> dict[str, Any]:
        """Everything found, by name, as JSON takes it."""
        return _finite(asdict(self) | {"epsilon_at_least": self.epsilon, "broken": self.broken})


def numbers(
    target: Target, trials: int | None, canaries: int | None, *, listed: bool
) -> dict[str, int]:
    """Trials and canaries for `attack`, those left out by whether one release proves a bound.

    Of a list, targets without canaries go by trials whatever is given, and float noise, which is
    cheap, by three times as many.
    """
    most = most_canaries(target)
    canaries = most if canaries is None or (listed and not most) else canaries
    if trials is None:
        trials = 0 if canaries else TRIALS
    many = 3 if listed and target.noise == "float" else 1
    return {"trials": many * trials, "canaries": canaries}


def attack(
    target: Target, *, trials: int = 0, canaries: int = 0, confidence: float = 0.9999
) -> Finding:
    """A lower bound of ε for the release as a whole, by trials, by one release, or both.

    The attacker knows both data sets of the worst pair and the noise of the dishonest users; it
    sees what the sums open. Clopper-Pearson bounds on a projection test, and `one_run`: at most a
    fraction 1 − confidence of the audits of correct code finds it broken.

    Args:
        target: what is released.
        trials: releases of either data set, at least 16: four tune the attack; 0: none.
        canaries: in the one release, at least 2; 0: no such release.
        confidence: of all bounds together, in (0, 1).

    Raises:
        ValueError: an argument out of range, or a release that refuses its settings.
    """
    if trials or not canaries:
        check.at_least(16, trials=trials)
    if canaries:
        check.at_least(2, canaries=canaries)
    check.within("(0, 1)", confidence=confidence)
    target.federation.validate()
    if not target.federation.privacy.private:
        raise ValueError("epsilon must be finite for an audit, got inf")
    each = 1 - (1 - confidence) / 2 if trials and canaries else confidence
    once = audit_once(target, canaries=canaries, confidence=each) if canaries else None
    if not trials:
        assert once is not None
        found = Finding(claim=once.claim, confidence=confidence)
    else:
        pair, shift = worst_pair(target)
        drawn = [
            torch.stack([target.opened(of) for _ in tqdm(range(trials), disable=None, leave=False)])
            for of in (pair.first, pair.second)
        ]
        claim = target.claim(pair.first)
        found = judge(drawn[0], drawn[1], shift, claim, confidence=each, pair=str(pair))
    if once is None:
        return found
    return replace(found, one_run=once.epsilon, canaries=canaries, confidence=confidence)


def worst_pair(target: Target) -> tuple[Neighbours, Tensor]:
    """The neighbours that differ most in what is opened without noise, and that difference."""
    found, reach = None, -1.0
    for pair in target.federation.neighbours():
        shift = target.noiseless(pair.first) - target.noiseless(pair.second)
        if (length := float(shift.norm())) > reach:
            found, reach = (pair, shift), length
    assert found is not None
    return found


def judge(
    first: Tensor,
    second: Tensor,
    shift: Tensor,
    claim: Claim,
    *,
    confidence: float,
    pair: str = "",
) -> Finding:
    """The bounds that two samples of what was opened prove.

    Args:
        first: (R, D) with the first data set.
        second: (R, D) with the second.
        shift: (D,) first minus second without noise.
        claim: what was promised.
        confidence: of both bounds together: each may miss with half of the rest.
        pair: which neighbours, in words.
    """
    tuning = math.ceil(TUNING * len(first))
    direction, separation = _direction(first[:tuning], second[:tuning], shift)
    scores = in_one_unit([(drawn @ direction).numpy() for drawn in (first, second)])
    centres = [float(part[:tuning].mean()) for part in scores]
    spread = math.sqrt(sum(float(part[:tuning].var()) for part in scores) / 2)
    each = 1 - (1 - confidence) / 2
    proof = [part[tuning:] for part in scores]
    cut = _cut(centres, spread, len(proof[0]), claim.delta, each)
    middle = sum(centres) / 2  # where Φ⁻¹ of a frequency is most certain
    curve = gaussian_epsilon(*_rates(proof, middle, each), claim.delta)
    return Finding(
        claim=claim,
        clopper_pearson=epsilon_of_test(*_rates(proof, cut, each), claim.delta),
        gaussian=curve if claim.gaussian else None,
        confidence=confidence,
        trials=len(first),
        pair=pair,
        separation=separation,
    )


def in_one_unit(scores: list[np.ndarray]) -> list[np.ndarray]:
    """Divided by one power of two, so that no square overflows; cuts divide them as before."""
    largest = max(float(np.abs(part).max()) for part in scores)
    return [np.ldexp(part, -np.frexp(largest)[1]) for part in scores]


def _rates(scores: list[np.ndarray], cut: float, confidence: float) -> tuple[float, float]:
    """(power, size) of "above the cut: first"."""
    hits, false = (int((drawn > cut).sum()) for drawn in scores)
    power, size = power_and_size(hits, len(scores[0]), false, len(scores[1]), confidence)
    return float(power), float(size)


def _cut(
    centres: list[float], spread: float, trials: int, delta: float, confidence: float
) -> float:
    """The cut with the best bound to be expected if both projections are Gaussian."""
    reach = 4 * spread + abs(centres[0] - centres[1])
    cuts = np.linspace(min(centres) - reach, max(centres) + reach, CUTS)
    hits, false = (
        np.rint(trials * norm.sf(cuts, centre, spread + 1e-300)).astype(int) for centre in centres
    )
    rates = power_and_size(hits, trials, false, trials, confidence)
    expected = [epsilon_of_test(*rate, delta) for rate in zip(*rates, strict=True)]
    return float(np.mean(cuts[np.equal(expected, max(expected))]))


def _direction(first: Tensor, second: Tensor, shift: Tensor) -> tuple[Tensor, float]:
    """(D,) a projection that tells the two samples apart, and how well it does.

    The known difference against the noise of every coordinate alone is best for independent noise.
    Also tried are the observed difference, and both against the whole covariance (Fisher's
    discriminant, which finds noise that cancels). Half of the trials make the projections, the
    other half compares them; another than the first must be better by more than chance.
    """
    half = len(first) // 2
    noise = torch.cat([part[:half] - part[:half].mean(0) for part in (first, second)])
    variance = noise.square().mean(0)
    floor = RIDGE * float(variance.max()) + 1e-300
    tried = []
    for difference in (shift, first[:half].mean(0) - second[:half].mean(0)):
        tried.append(difference / (variance + floor))
        if variance.max() > 0 and len(noise) >= 4 * noise.shape[1]:
            covariance = noise.mT @ noise / len(noise) + torch.eye(len(variance)) * floor
            tried.append(torch.linalg.solve(covariance.double(), difference))
    separations = [_separation(first[half:] @ d, second[half:] @ d) for d in tried]
    chance = 2 * math.sqrt(2 / (len(first) - half))
    best = int(np.argmax(separations))
    chosen = best if separations[best] > separations[0] + chance else 0
    return tried[chosen], separations[chosen]


def _separation(first: Tensor, second: Tensor) -> float:
    spread = math.sqrt(float(first.var() + second.var()) / 2)
    return float(first.mean() - second.mean()) / max(spread, 1e-300)


def power_and_size(
    hits: Counts, trials: int, false: Counts, false_trials: int, confidence: float
) -> tuple[np.ndarray, np.ndarray]:
    """(least power, largest size) of a test, or of each of n, jointly at this confidence.

    One-sided intervals of Clopper and Pearson (1934), each missed with chance (1 − confidence)/2:
    exact for every number of trials.

    Args:
        hits: how often the test says "first" where that is true.
        trials: how often it was asked there.
        false: how often it says "first" where the second is true.
        false_trials: how often it was asked there.
        confidence: of both together.

    Returns:
        Twice (n,) of (n,) counts, twice () of a single test.
    """
    miss = (1 - confidence) / 2
    powers = beta.ppf(miss, np.maximum(hits, 1), trials - hits + 1)
    sizes = beta.isf(miss, false + 1, np.maximum(false_trials - false, 1))
    return (
        np.where(np.greater(hits, 0), powers, 0.0),
        np.where(np.less(false, false_trials), sizes, 1.0),
    )


def epsilon_of_test(power: float, size: float, delta: float) -> float:
    """The ε that a test of at least this power and at most this size rules out, at least 0.

    (ε, δ) promises power ≤ e^ε size + δ, and as much with the two data sets exchanged
    (Kairouz, Oh and Viswanath 2015).
    """
    sides = ((power, size), (1 - size, 1 - power))
    return max(0.0, *(_one_sided(yes, no, delta) for yes, no in sides))


def gaussian_epsilon(power: float, size: float, delta: float) -> float:
    """The ε at δ of the weakest Gaussian mechanism that admits a test of this power and size.

    μ-Gaussian privacy promises Φ⁻¹(power) − Φ⁻¹(size) ≤ μ (Dong, Roth and Su 2022), so a promise
    made with the Gaussian curve is broken where this exceeds it; other promises need not be
    (Nasr et al. 2023, Sec. 4).
    """
    mu = float(norm.ppf(power) - norm.ppf(size))
    if not mu > 0:
        return 0.0
    return accounting.epsilon(delta, 1 / mu) if math.isfinite(mu) else math.inf


def _one_sided(yes: float, no: float, delta: float) -> float:
    if not yes > delta:
        return -math.inf
    return math.log((yes - delta) / no) if no > 0 else math.inf


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    return "inf" if isinstance(value, float) and math.isinf(value) else value
