"""Default settings of methods, from public numbers alone.

How many directions and how little regularisation pay depends on the noise. Its measure is t, the
standard deviation of the noise in a class mean of rows of norm 1, were classes equal:

    t = 2 K z √(m C) A / (N √h),    z the noise multiplier of (ε, δ),

2 the sensitivity of a record, A records that change together, h the share of μ² that the sum gets,
m = w/H where w users, H of them honest, share the noise of one sum, w where every user adds all of
it, 1 where all rows lie in one place; C parts of what is sent are moved by a record.
`embed.water_filling` makes of it directions and lengths, `registry.Rule` the rest. No number here
comes from a private row of a user.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from embed import PublicTransform
from embed.water_filling import MOST, PLANNED_SHARE, Channel
from train_distributed import accounting
from train_distributed.one_shot.first_sum import FIRST_SHARE
from train_distributed.one_shot.further_rounds import OWN_SHARE
from train_distributed.one_shot.registry import METHODS, OTHERS, Rule, clips
from train_distributed.privacy.promise import Privacy, group_sensitivity

L2_REGS = (0.003, 1.0)  # prior: the least and largest Λ
MANY_USERS = 100  # prior: of whom some may lie, and lengthen class sums of n rows by √n
ROUNDS, QUIET = 16, 0.005  # prior: further sums for one owner, and t up to which they pay
CHARTER = ("charter", "charter-sum")

RIVALS: Mapping[str, Rule] = {
    "output-perturbation": Rule(l2_reg=8, one_vs_rest=True),
    "dp-svm-smo": Rule(l2_reg=8, one_vs_rest=True),
    "centralised-softmax": Rule(l2_reg=16, noise="central"),
    "centralised-svm": Rule(l2_reg=8, one_vs_rest=True, noise="central"),
    "gradient-perturbation": Rule(),
    "amp": Rule(noise="central"),
    "charter-sum": Rule(),
}


class Settings(NamedTuple):
    """What a method is made of, nothing left out."""

    transform: PublicTransform  # raw, of a method of ours; of a rival it maps the rows
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Public numbers that are known before a run."""

    sizes: Tensor  # (users,) n_i
    num_classes: int  # K
    privacy: Privacy
    min_survivors: int | None = None

    def settled(
        self, method: str, transform: PublicTransform, given: Mapping[str, Any]
    ) -> Settings:
        """Transform and options of any method: the one place where what is left out is filled in.

        A method of ours maps the rows itself, as its first sum says; those of a rival are mapped
        here.
        """
        if method in METHODS:
            return Settings(transform, self.settings(method, transform, given))
        return Settings(*self.of_rival(method, transform, given))

    def settings(
        self, method: str, transform: PublicTransform, given: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Options of a method of ours, those that are left out filled in.

        Rows of a transform that has seen no public rows stay as they are, and one sum is enough for
        them; so it is where users are protected as a whole, or clipped, without a clip of the first
        sum. One owner of all rows, whom they cost nothing, makes further rounds where noise is
        small.
        """
        rule, found = rule_of(method), dict(given)
        first_clip, clip = clips(found.get("user_clip"))
        if not transform.is_identity:
            apart = clip is not None or self.privacy.unit == "user"
            found = {"sums": 1 if apart and first_clip is None else 2, **found}
        if method == "discriminant" and clip is None and "rounds" not in found:
            quiet = 0 < self.noise(rule, sums=found.get("sums", 1)) <= QUIET
            if len(self.sizes) == 1 and quiet:
                found["rounds"] = ROUNDS
        if "class_noise" not in found:
            share = found.get("sums", 1), found.get("rounds", 0)
            noise = self.noise(rule, clip if rule.l2_reg is None else None, *share)
            if not transform.is_identity:
                found |= {"class_noise": noise}
            if rule.l2_reg is not None:
                found = {"l2_reg": _within(rule.l2_reg * noise, L2_REGS), **found}
        if rule.l2_reg is not None and clip is None:  # which would shorten features with the head
            found = {"prior": "equal", **found}
        if "class_noise" in found and "components" not in found:
            found["components"] = components_of(rule, transform, found["class_noise"])
        return found

    def noise(
        self, rule: Rule, user_clip: float | None = None, sums: int = 1, rounds: int = 0
    ) -> float:
        """t of a method; 0 without noise. A users' clip C_u is known to sums: A <= C_u of users."""
        privacy, users, rows = self.privacy, len(self.sizes), int(self.sizes.sum())
        compositions = self.num_classes if rule.one_vs_rest else 1
        multiplier = accounting.noise_multiplier(privacy.epsilon, privacy.delta, compositions)
        certain = privacy.certain_shares(users, self.min_survivors)
        shared = privacy.noise_shares(users) / certain
        shares = {"shared": shared, "everybody's": users, "central": 1.0}
        together = group_sensitivity(
            1.0, self.sizes, self.sizes, unit=privacy.unit, group_size=privacy.group_size
        )
        if user_clip is not None and privacy.unit == "user":
            together = min(together, user_clip * privacy.group_size)
        noise = 2 * self.num_classes * multiplier * math.sqrt(shares[rule.noise]) * together / rows
        share = (1 - FIRST_SHARE if sums == 2 else 1.0) * (OWN_SHARE if rounds else 1.0)
        return noise / math.sqrt(share)

    def of_rival(
        self, method: str, transform: PublicTransform, given: Mapping[str, Any]
    ) -> tuple[PublicTransform, dict[str, Any]]:
        """Transform and options of a method that we compare with; its rows are mapped, in one sum.

        Λ is by the rule of its kind; Charter's cuts are as many as the smallest user can share out.
        """
        rule, found = rule_of(method), dict(given)
        noise = self.noise(rule)
        components = found.pop("components", None)
        if not transform.is_identity and transform.directions is None:
            most = components or components_of(rule, transform, noise)
            transform = transform.mapped(noise, most)
        if method in CHARTER:
            rounds = max(1, min(2, int(self.sizes.min()) // 3))  # of 1 to 13, 2 bears least noise
            return transform, {"cut_rounds": rounds, **found}
        if rule.l2_reg is not None:
            found = {"l2_reg": _within(rule.l2_reg * noise, L2_REGS), **found}
        return transform, found

    def against_liars(self, method: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a method with a users' clip of c √n, unless one is given.

        c is the rows' clip norm, √1.25. Class sums of n rows of different classes are about c √n
        long, without what public rows would add; a liar's could be c n long. Nine users in ten have
        n rows or fewer, so a tenth of the users cannot lengthen the clip by saying that they have
        more. Fewer than 100 users, who know each other, keep all of their vectors. Heads, which
        have a length of their own, need no clip.
        """
        users = len(self.sizes)
        if method != "discriminant" or users < MANY_USERS or "user_clip" in given:
            return dict(given)
        rows = int(self.sizes.sort().values[math.ceil(0.9 * users) - 1])
        return {"user_clip": round(math.sqrt(1.25 * rows), 1), **given}


def components_of(rule: Rule, transform: PublicTransform, noise: float) -> int:
    """q, fixed before any sum: what the rule hears of the public classes at this noise."""
    if transform.known is not None:
        return min(MOST, transform.dim - 1)
    channel = Channel.of(transform.public, PLANNED_SHARE)
    return channel.count(noise, rule.information)


def rule_of(method: str) -> Rule:
    """The rule of a method of the registry, or of a rival."""
    return METHODS[method].rule if method in METHODS else RIVALS.get(method, OTHERS)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
