"""A lower bound of ε from one release: many canaries with random signs, one projection of each sum.

After "Let's Ask Gauss" (Agrawal et al. 2026, arXiv 2606.12733), for sums with known parts.

**Canaries.** A canary is what the promise protects: one record, all records of one user, or a group
of these. It takes one of two values, + or −, whose movement d_j of the noise-free sum is as long as
the clip allows, and orthogonal to those of other canaries: record (u, y) against (−u, y), every u a
coordinate axis, every pair of axis and label once. m signs s are drawn at random. Data sets that
differ in one sign are neighbours.

**Statistic.** The attacker knows f, the noise-free sum, hence w = (f(s) − f(−s))/2 and the middle
c = (f(s) + f(−s))/2, and its own noise, which is left out. The opened sum is Y = f(s) + Z with Z of
independent N(0, σ²) in every coordinate that w touches; σ is unknown. So

    t = ⟨Y − c, w/‖w‖⟩ ~ N(‖w‖, σ²).

The mechanism is no better than μ-private for μ = g/σ, g = ‖f(s) − f(s')‖ with one sign turned
(Dong, Roth and Su 2022, Thm 2.7). For m orthogonal movements of equal length w = Σ s_j d_j/2, t/√m
is the mean of sign times projection, ‖w‖ = √m g/2, and with q the quantile of N(0, 1) at the
confidence

    μ = (g/‖w‖) (‖w‖/σ) >= (2/√m) (t/σ − q).

**Confidence.** σ is measured by what is orthogonal to w: with ν + 1 touched coordinates and
σ̂² = ‖Y − c − t w/‖w‖‖²/ν, the quotient t/σ̂ has Student's noncentral distribution with ν degrees of
freedom and noncentrality ‖w‖/σ. Its lower confidence bound λ replaces t/σ − q and is exact for any
m and ν, so μ >= λ g/‖w‖ misses with chance 1 − confidence, whatever the signs are.

**Interference.** Nothing above needs orthogonal movements, equal lengths, or a sum over records:
g and w are measured in f. Canaries that share a direction, or one user's clip, only make w shorter
than √m g/2 in some draws (E‖w‖² is m g²/4 for any directions, by the signs), and so the bound
weaker. Where a vector is trained or clipped by user, every canary has a user of its own.

**Several sums.** The second of two sums is planned before the first, but its rows are taken about
the centre that the first has found. Given that centre it is one more Gaussian mechanism, for which
the above holds with f as it is about that centre. μ² of both add up (ibid., Cor. 3.3), so with
bounds that miss with half of the chance each, μ >= √(μ_1² + μ_2²).

**Assumption.** The noise is Gaussian, independent and equal in the touched coordinates, as the
mechanism adds it; how much of it there is, is measured. Noise that repeats or cancels is left to
the attack by trials, which assumes nothing.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import nctdtrinc
from torch import Tensor

from embed import EmbeddingSet
from train_distributed import accounting
from train_distributed.one_shot.model import Release
from train_distributed.one_shot.registry import METHODS
from train_distributed.one_shot.release import release_of
from train_distributed.research.audit.target import Claim, Target
from train_distributed.research.audit.worst_case import FAR, AnswersCase, WorstCase

CANARIES = 1 << 14  # size: finds one of two honest users' noise missing, in seconds
CANARIES_OF_USERS = 1 << 10  # size: the same where each has a user of its own, who adds noise
TOUCHED = 1e-6  # of w's largest entry: below it is rounding
SHARPEST = 1e4  # t/σ̂ beyond which the bound stays; larger ones only lack noise all the more


@dataclass(frozen=True)
class OneRun:
    """Lower bound that one release proves."""

    claim: Claim
    mu_per_sum: tuple[float, ...]  # lower bounds of sensitivity over noise

    @property
    def epsilon(self) -> float:
        """ε at the promised δ of the weakest Gaussian mechanism with this μ."""
        mu = math.hypot(*self.mu_per_sum)
        return accounting.epsilon(self.claim.delta, 1 / mu) if mu > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Canaries(WorstCase):
    """Users that hold canaries, each of its own feature and class; everybody else's rows are 0."""

    count: int  # m
    alone: bool  # every canary has users of its own, all rows or the last ones of each

    @classmethod
    def of(cls, federation: WorstCase, count: int, *, alone: bool) -> "Canaries":
        """So many canaries for the promise of a federation.

        Users are as many as there were, with as many rows as it takes; or, where canaries are
        `alone`, as many as it takes for the same shares of dishonest and dropped ones.
        """
        side, privacy = math.isqrt(count - 1) + 1, federation.privacy
        by_user, group = privacy.unit == "user", privacy.group_size
        users, rows, least = federation.users, federation.rows, federation.min_survivors
        survivors = 1.0 if least is None else least / users
        needed = 1
        if alone:
            needed = users = count * group if by_user else count
            rows = rows if by_user else max(rows, group)
        while True:
            least = None if federation.min_survivors is None else math.ceil(survivors * users)
            made = cls(users, rows, side, side, privacy, least, count=count, alone=alone)
            missing = needed - len(made.holders)
            if missing <= 0:
                break
            users += missing
        return made if alone else replace(made, rows=math.ceil(count * group / len(made.holders)))

    @property
    def holders(self) -> range:
        """Honest users that stay."""
        return range(len(self.dishonest) + len(self.dropped), self.users)

    def signed(self, signs: np.ndarray) -> EmbeddingSet:
        """The data set in which the (m,) canaries have these signs, ±1."""
        by_user, group = self.privacy.unit == "user", self.privacy.group_size
        held = group * self.rows if by_user else group  # rows of a canary
        canary, row = np.divmod(np.arange(self.count * held), held)
        apart = self.rows if self.alone and not by_user else held
        row += canary * apart + apart - held + self.holders.start * self.rows
        x = np.zeros((self.users * self.rows, self.features), np.float32)
        y = np.arange(self.users * self.rows) % self.rows % 2
        x[row, canary % self.features] = FAR * signs[canary]
        y[row] = canary // self.features
        return self.as_set(x, y)


def most_canaries(target: Target) -> int:
    """Canaries that a release takes seconds with; 0: one release proves no bound.

    Its sums must be Gaussian, and known without their noise: SGD draws batches, and rounds of
    gradients know the noise of all earlier sums. Canaries have classes of their own, for which a
    list of shares, the `prior`, would be too short.
    """
    if target.method not in METHODS or isinstance(target.federation, AnswersCase):
        return 0
    options = target.options
    drawn = options.get("solver") == "sgd" or options.get("rounds")
    if drawn or target.releases > 1 or not isinstance(options.get("prior", ""), str):
        return 0
    return CANARIES_OF_USERS if _alone(target) else CANARIES


def audit_once(
    target: Target, *, canaries: int, confidence: float, seed: int | None = None
) -> OneRun:
    """A lower bound of ε from one release with its noise, and three without for each sum.

    Args:
        target: what is released; of its federation the promise, the users and their rows count.
        canaries: m >= 2.
        confidence: of the bound, in (0, 1).
        seed: of the signs; None: from the operating system.

    Raises:
        ValueError: a target for which there is no such bound, or as `release`.
    """
    if not most_canaries(target):
        raise ValueError(
            f"canaries must be left out or 0 for method {target.method!r} with these settings: one "
            f"release proves no bound of them, got {canaries}"
        )
    case = Canaries.of(target.federation, canaries, alone=_alone(target))
    # no rounds, which one owner of so many rows would make; every canary's direction is kept
    fixed = {"rounds": 0} if target.method == "discriminant" else {}
    fixed |= {"components": case.features} if "class_noise" in target.options else {}
    target = replace(target, federation=case, options={**target.options, **fixed})
    signs = 2 * np.random.default_rng(seed).integers(0, 2, canaries) - 1
    turned = signs.copy()
    turned[-1] *= -1
    found: list[Tensor] = []  # the centre, where a first sum finds it
    request = target.request(case.signed(signs), allow_delta=True, found=found.append)
    released = release_of(request)
    first = request.built.first
    sizes = [request.built.statistic.dimension]
    sizes = sizes if first is None else [first.dimension, *sizes]
    sums = _opened(released).split(sizes)
    bare = replace(case.privacy, epsilon=math.inf)
    each = 1 - (1 - confidence) / len(sums)
    mu = []
    for number, opened in enumerate(sums):
        centre = found[0] if number else None
        known = [
            _opened(release_of(target.request(data, bare, allow_delta=True, centre=centre)))
            for data in map(case.signed, (signs, -signs, turned))
        ]
        start = 0 if centre is None else len(centre)
        known = [plain[start : start + len(opened)] for plain in known]
        mu.append(least_mu(opened, known, confidence=each))
    claim = Claim(released.report["epsilon"], case.privacy.delta, True)
    return OneRun(claim, tuple(mu))


def least_mu(opened: Tensor, known: list[Tensor], *, confidence: float) -> float:
    """Lower bound of g/σ from one sum; see the module.

    Args:
        opened: (D,) Y.
        known: (D,) each, without noise: f(s), f(−s), and f with one sign turned.
        confidence: of the bound.
    """
    signed, opposite, turned = known
    half = (signed - opposite) / 2
    touched = half.abs() > TOUCHED * half.abs().max()
    freedom = int(touched.sum()) - 1
    if freedom < 1:
        return 0.0
    direction = half[touched] / half[touched].norm()
    seen = (opened - (signed + opposite) / 2)[touched]
    t = float(seen @ direction)
    spread = float((seen - t * direction).norm()) / math.sqrt(freedom)
    quotient = min(t / spread, SHARPEST) if spread > 0 else math.copysign(SHARPEST, t)
    least = float(nctdtrinc(freedom, confidence, quotient))
    return max(0.0, least) * float((signed - turned).norm() / half.norm())


def _alone(target: Target) -> bool:
    """Whether canaries of one user would be trained or clipped together, or are users."""
    together = target.options.get("user_clip") is None and METHODS[target.method].sums_rows
    return not together or target.federation.privacy.unit == "user"


def _opened(released: Release) -> Tensor:
    assert released.opened is not None
    return released.opened
