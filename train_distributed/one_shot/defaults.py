"""Default settings of methods: a rule of public numbers, fitted to public tasks.

How many directions and how little regularisation pay depends on the noise. Its measure here is t,
the standard deviation of the noise in a class mean of rows of norm 1, were classes equal:

    t = K z √(m C) A / N,    z the noise multiplier of (ε, δ),    A records that change together,

m = w/H where w users, H of them honest, share the noise of one sum, w where every user adds all of
it, 1 where all rows lie in one place; C parts of what is sent are moved by a record. A rule says
q = b/tᵉ directions and Λ = a t, each within the range that was tried. Of K classes, with K₀ usual,
t counts √(K₀/K) times for q: many want more directions than their noise says, two want fewer.
After a first sum that finds a private centre q is multiplied by one of `KEEP`, see `centring`. The
rules were fitted to classes of Tiny-ImageNet (`tests/benchmarks/bench_defaults.py`), those of the
discriminant and of heads to photographs, digits and drawn pictures through two encoders
(`tests/benchmarks/bench_kinds.py`); results/methods.md has the losses. No number here comes from a
private row of a user.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from embed.directions import RESTRICTED
from embed.transform_options import TransformOptions
from pretrain import check
from train_distributed import accounting
from train_distributed.one_shot.centring import OTHER, Keep
from train_distributed.one_shot.registry import METHODS, OTHERS, Rule
from train_distributed.privacy.promise import Privacy, group_sensitivity

COMPONENTS = (16, 256)  # q that were tried
L2_REGS = (0.003, 1.0)  # Λ that were tried
KNOWING = 256  # q where guesses of the class means are at hand, all but `leading` faint
NUMBER = 8  # bytes of a number that a user sends
CLIP_QUANTILE = 0.1  # .02 to .3 are within half a point of each other
MANY_USERS = 100  # of whom some may lie, and lengthen class sums of n rows by √n
KEEP = (1.0, 0.5, 1.5)  # of q, where private rows have little, some, and much in common
ROUNDS, QUIET = 16, 0.0025  # further sums for one trusted server, and t up to which they pay
# t from which gradients alone serve it better, for rows with more than `OTHER` in common up to
# `LOUD`, for those with more than `WRITTEN` at any larger t
FAINT, LOUD, WRITTEN = 0.0015, 0.0075, 0.6
# t up to which there are discriminants, their number for K₀, and that where hardly any noise is
CLEAR, SEPARATING, MOST_SEPARATING = 0.01, 192, 384
# Weight α of second moments, for features of norm 1: up to `FREE` they add no noise to the class
# sums; `HEAVY` adds 6 %, takes a quarter off their own, and is for t up to `SURE`.
FREE, HEAVY, SURE = math.sqrt(0.5), 1.0, 0.0033
CHARTER, CUT_ROUNDS = ("charter", "charter-sum"), 2  # of 1, 2, 4, 8 and 13 the least noise to bear


PLAIN = Rule(2.5, 0.5, 16, one_vs_rest=True)  # one-vs-rest heads that are not centred
RIVALS: Mapping[str, Rule] = {
    "output-perturbation": PLAIN,
    "dp-svm-smo": PLAIN,
    "centralised-softmax": Rule(2.5, 0.5, 32, noise="central"),
    "centralised-svm": replace(PLAIN, noise="central"),
    "gradient-perturbation": Rule(0.18, 1),
    "amp": Rule(0.06, 1, noise="central"),
    "charter-sum": Rule(0.1, 1),
}


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Public numbers that are known before a run."""

    sizes: Tensor  # (users,) n_i
    num_classes: int  # K
    privacy: Privacy
    min_survivors: int | None = None
    one_sum: bool = False  # whether users can be asked once only

    def noise(self, rule: Rule, user_clip: float | None = None) -> float:
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
        if user_clip is not None and privacy.unit == "user" and rule.l2_reg is None:
            together = min(together, user_clip * privacy.group_size)
        return self.num_classes * multiplier * math.sqrt(shares[rule.noise]) * together / rows

    @property
    def trusted(self) -> bool:
        """Whether nobody knows a part of the noise, as where one server holds all rows."""
        shares = self.privacy.noise_shares(len(self.sizes))
        return self.privacy.certain_shares(len(self.sizes), self.min_survivors) == shares

    def components(self, method: str, most: int, user_clip: float | None = None) -> int:
        """q of at most `most` directions."""
        return self._kept(rule_of(method), most, user_clip)

    def keep_by_rule(self, method: str, most: int) -> Keep:
        """Directions after a first sum, each at most `most`, for private rows of every kind."""
        few, fewer, more = (self._kept(rule_of(method), most, None, times) for times in KEEP)
        return few, fewer, more

    def keep(
        self, method: str, given: TransformOptions, most: int, options: Mapping[str, Any]
    ) -> Keep | None:
        """Directions after a first sum, each at most `most`; see `centring`.

        None where there is no such sum, where further rounds learn from their errors along all
        directions, or where the transform's directions were chosen otherwise.
        """
        rule = rule_of(method)
        if "keep" not in options and options.get("rounds", self._rounds(rule)):
            return None
        open_ = given.components is None and given.whiten
        by_rule = open_ and given.directions in (None, rule.directions)
        if not (rule.centred and by_rule and self.centred(method, options)):
            return None
        few, fewer, more = options.get("keep", self.keep_by_rule(method, most))
        widest = max(more, self.discriminants(method, most) or 0)
        return (few, fewer, more) if "keep" in options or fewer < widest else None

    def discriminants(self, method: str, most: int) -> int | None:
        """Number of discriminants, for rows with much in common; None where noise is large.

        √(K/K₀) times `SEPARATING` for K classes, or `MOST_SEPARATING` where noise is so small that
        half of the rule's q, before its upper bound, reaches that bound; at most `most`.
        """
        rule = rule_of(method)
        if rule.usual_classes is None or self.noise(rule) > CLEAR:
            return None
        wanted = SEPARATING * math.sqrt(self.num_classes / rule.usual_classes)
        quiet = self._kept(rule, COMPONENTS[1], None, KEEP[1]) == COMPONENTS[1]
        return min(MOST_SEPARATING if quiet else round(_within(wanted, COMPONENTS)), most)

    def _rounds(self, rule: Rule) -> int | None:
        return ROUNDS if self._often(rule) and 0 < self.noise(rule) <= QUIET else None

    def _descent_above(self, rule: Rule, given: Mapping[str, Any]) -> float | None:
        """Share in common from which gradients alone are summed; they count no classes."""
        noise, counted = self.noise(rule), given.get("prior", "empirical") == "empirical"
        if not self._often(rule) or "rounds" in given or not counted or noise < FAINT:
            return None
        return OTHER if noise <= LOUD else WRITTEN

    def moment_weight(self, method: str, given: Mapping[str, Any]) -> float | None:
        """α = (`SURE`/t)^¼ of second moments, up to `HEAVY`; None for `FREE`, the method's own.

        The less noise the class means have, the more of the remaining error is the covariance's.
        It was not tried with further rounds.
        """
        rule, apart = rule_of(method), {"alpha", "user_clip"} & set(given)
        sent = method == "discriminant" and given.get("moments", True)
        if not sent or apart or given.get("rounds") or self.privacy.unit == "user":
            return None
        noise = self.noise(rule)
        wanted = (SURE / noise) ** 0.25 if noise else math.inf
        return round(min(wanted, HEAVY), 2) if wanted > FREE else None

    def _often(self, rule: Rule) -> bool:
        """Whether gradients may be summed by default: of a method that learns from them."""
        return self.trusted and not self.one_sum and rule.centred

    def _kept(self, rule: Rule, most: int, user_clip: float | None, times: float = 1.0) -> int:
        noise = self.noise(rule, user_clip)
        if rule.usual_classes is not None:
            noise *= math.sqrt(rule.usual_classes / self.num_classes)
        wanted = times * rule.components / noise**rule.exponent if noise else math.inf
        return min(round(_within(wanted, COMPONENTS)), most)

    def centred(self, method: str, given: Mapping[str, Any], *, placed: bool = False) -> bool:
        """Whether a method of sums begins with one that finds the centre, as `options` says."""
        rule = rule_of(method)
        if "centre" in given or rule.l2_reg is not None or method in CHARTER:
            return given.get("centre") == "private"
        alone = placed or self.one_sum or "user_clip" in given or given.get("rounds")
        return rule.centred and not alone

    def transform(
        self,
        method: str,
        given: TransformOptions,
        most: int,
        user_clip: float | None = None,
        *,
        knowing: bool = False,
    ) -> TransformOptions:
        """Options of the transform; what is left out is filled in, at most `most` directions.

        Where something is known of the classes there are `KNOWING`, and those that the noise does
        not allow for are faint: a guess says where the classes lie along them, and they take little
        of a row's length from the leading ones, which are as without it.

        Raises ValueError for a given number above `most`.
        """
        kind = given.directions or (rule_of(method).directions if given.whiten else "principal")
        if given.components is not None:
            check.within(f"[1, {most}]", components=given.components)
            return replace(given, directions=kind)
        allowed = self.components(method, most, user_clip)
        wanted = max(min(KNOWING, most), allowed) if knowing else allowed
        faint = {"leading": allowed} if allowed < wanted and given.leading is None else {}
        return replace(given, directions=kind, components=wanted, **faint)

    def filled_in(
        self,
        method: str,
        given: TransformOptions,
        options: Mapping[str, Any],
        most: int,
        *,
        knowing: bool = False,
    ) -> tuple[TransformOptions, dict[str, Any]]:
        """Options of the transform, and those of the method with the directions that it keeps."""
        found = dict(options)
        if not knowing and (keep := self.keep(method, given, most, found)):
            descends = self._descent_above(rule_of(method), found) is not None
            widest = min(COMPONENTS[1], most) if descends else 0
            sought = given.discriminants or (None if descends else self.discriminants(method, most))
            if sought and "keep" not in found:
                keep, widest = (*keep[:2], sought), min(RESTRICTED, most)
                given = replace(given, discriminants=sought)
            found["keep"], given = keep, replace(given, components=max(*keep, widest))
        clip = found.get("user_clip")
        return self.transform(method, given, most, clip, knowing=knowing), found

    def bytes_per_user(self, method: str, components: int, options: Mapping[str, Any]) -> int:
        """Bytes of a submission of a method of one sum, before it is encrypted."""
        numbers = (components + 1) * self.num_classes
        if method == "discriminant" and "user_clip" not in options and options.get("moments", True):
            numbers += components * (components + 1) // 2
        if rule_of(method).l2_reg is not None and options.get("prior", "empirical") != "empirical":
            numbers += components
        return NUMBER * numbers

    def most_components(
        self, method: str, width: int, options: Mapping[str, Any], most_bytes: int
    ) -> int:
        """Largest q <= `width` of a submission of so many bytes.

        Raises ValueError for a method of many rounds, and if one direction is too much.
        """
        if method not in METHODS:
            raise ValueError(
                f"most_bytes must be left out with method {method!r}, got {most_bytes}"
            )
        least = self.bytes_per_user(method, 1, options)
        check.within(f"[{least}, inf)", most_bytes=most_bytes)
        fitting = (
            q for q in range(width, 0, -1) if self.bytes_per_user(method, q, options) <= most_bytes
        )
        return next(fitting)

    def options(
        self, method: str, given: Mapping[str, Any], *, placed: bool = False
    ) -> dict[str, Any]:
        """The options of a method: Λ and prior of heads, Charter's cuts, centre, rounds, α.

        `placed` says that the transform knows where the private classes lie. Further rounds are
        for one trusted server, whom they cost nothing, where noise is small.
        """
        if method in CHARTER:
            rounds = max(1, min(CUT_ROUNDS, int(self.sizes.min()) // 3))
            return {"cut_rounds": rounds, **given}
        rule = rule_of(method)
        if rule.l2_reg is None:
            found = dict(given)
            if self.centred(method, given, placed=placed):
                often = check.present(
                    rounds=self._rounds(rule), descent_above=self._descent_above(rule, given)
                )
                found = {"centre": "private", **often, **given}
            weight = None if placed else self.moment_weight(method, found)
            return found | check.present(alpha=weight)
        clipped = "user_clip" in given  # shortens a user's head and its sum of features alike
        centred = {"prior": "equal"} if method in METHODS and not clipped else {}
        return {"l2_reg": _within(rule.l2_reg * self.noise(rule), L2_REGS), **centred, **given}

    def against_liars(
        self, method: str, given: Mapping[str, Any], clip_norm: float
    ) -> dict[str, Any]:
        """Options of a method with a users' clip of c √n, unless one is given.

        c is the rows' clip norm. The class sums of n rows of different classes are about c √n long,
        without what public rows would add; a liar's could be c n long. Nine users in ten have n
        rows or fewer, so a tenth of the users cannot lengthen the clip by saying that they have
        more. Fewer than 100 users, who know each other, keep all of their vectors. Heads, which
        have a length of their own, need no clip; further rounds exclude one.
        """
        users = len(self.sizes)
        excluded = "user_clip" in given or given.get("rounds")
        if method != "discriminant" or users < MANY_USERS or excluded:
            return dict(given)
        rows = int(self.sizes.sort().values[math.ceil(0.9 * users) - 1])
        return {"user_clip": round(clip_norm * math.sqrt(rows), 1), **given}


def rule_of(method: str) -> Rule:
    """The rule of a method of the registry, or of a rival."""
    return METHODS[method].rule if method in METHODS else RIVALS.get(method, OTHERS)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
