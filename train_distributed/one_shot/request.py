"""What a release is asked for, and the settings that are left out, from public numbers alone.

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
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from embed import EmbeddingSet, PublicTransform
from embed.store import ASK
from embed.water_filling import MOST, PLANNED_SHARE, Channel
from pretrain import check
from train_distributed import accounting
from train_distributed.ledger.entry import Reserve
from train_distributed.one_shot.class_prior import class_names, with_shares
from train_distributed.one_shot.extra_sums import FIRST_SHARE, OWN_SHARE
from train_distributed.one_shot.method import Method
from train_distributed.one_shot.registry import (
    METHODS,
    OTHERS,
    Rule,
    build_method,
    clips,
    for_findings,
)
from train_distributed.one_shot.source import EmbeddingUsers, Source
from train_distributed.one_shot.statistic import Users
from train_distributed.one_shot.summation import Plan
from train_distributed.partition import Partition
from train_distributed.privacy.float_noise import system_generator
from train_distributed.privacy.promise import Privacy, group_sensitivity

Noise = Literal["discrete", "float"]
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
    """Settings of a method, nothing left out."""

    transform: PublicTransform  # raw, of a method of ours; of a rival it maps the rows
    options: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FederationSize:
    """Public numbers of a federation, whose rows are elsewhere or do not exist yet."""

    sizes: Tensor  # (users,) n_i
    num_classes: int  # K
    class_names: tuple[str, ...] = ()  # (): numbers as words
    # Who holds the rows: this process, parties, or such of whom some may lie
    held_by: Literal["process", "parties", "strangers"] = "process"


@dataclass(frozen=True)
class FaultInjection:
    """Faults injected by an audit or a rehearsal; its model is never suitable for release."""

    dropped: Collection[int] = ()  # users whose submission never arrives
    known_noise: Collection[int] = ()  # who adds noise that an attacker knows: none is in the sum

    @property
    def reason(self) -> str:
        """Reason why the model is unsuitable."""
        if self.known_noise:
            return f"an audit: {len(set(self.known_noise))} users or servers added no noise"
        return f"a rehearsal: {len(set(self.dropped))} users were made to drop out"

    def surviving(self, users: int, min_survivors: int) -> Tensor:
        """(users,) bool: who is left; raises ValueError for fewer than m_min, or no such user."""
        for name in ("known_noise", "dropped"):
            for user in getattr(self, name):
                if not 0 <= user < users:
                    raise ValueError(f"{name} must hold users in [0, {users}), got {user}")
        kept = torch.ones(users, dtype=torch.bool)
        kept[list(self.dropped)] = False
        if kept.sum() < min_survivors:
            raise ValueError(
                f"survivors must be >= min_survivors = {min_survivors}, got {int(kept.sum())}; "
                "nothing is released"
            )
        return kept


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """Data, public transform, privacy, method and options of a release, resolved once.

    `run`, `rehearse`, `audit`, the estimator, the terms of a federation and every learner that ours
    are compared with make one and read the rest from it. With a `FederationSize` in place of rows
    it has settings and a method, and no release.
    """

    embeddings: EmbeddingSet | Users | FederationSize
    method: str | Method
    privacy: Privacy
    transform: PublicTransform | None = None
    num_classes: int | None = None  # K as the caller declares it
    partition: Partition | None = None
    noise: Noise | None = None  # None: discrete, or the only kind that a rival has
    generator: torch.Generator | None = None
    min_survivors: int | None = None
    vouch_for_transform: bool = False
    allow_delta: bool = False
    faults: FaultInjection | None = None
    reserve: Reserve | None = None
    centre: Tensor | None = None  # that the first sum of an earlier try has found
    found: Callable[[Tensor], None] | None = None  # called with the centre, once it is known
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        asked = {"num_classes": self.num_classes, "min_survivors": self.min_survivors}
        scalars = {k: v for k, v in self.options.items() if isinstance(v, np.number)}
        check.number(**check.drop_none(**asked), **scalars)
        if not isinstance(self.method, str):
            return
        held = self.held
        if self.findings:
            object.__setattr__(self, "method", for_findings(self.method))
        elif held is not None and self.method in METHODS and not METHODS[self.method].classes:
            raise ValueError(
                f"embeddings must hold findings (`embed run --findings`) for method "
                f"{self.method!r}, got a set of classes"
            )

    @property
    def held(self) -> EmbeddingSet | None:
        """The set that the rows are taken from; None: they stream in, or are elsewhere."""
        rows = self.embeddings
        rows = rows.embeddings if type(rows) is EmbeddingUsers else rows
        return rows if isinstance(rows, EmbeddingSet) else None

    @cached_property
    def source(self) -> Source:
        """Rows, users, transform and classes, filled in; raises ValueError as `Source.of`."""
        if isinstance(self.embeddings, FederationSize):
            raise ValueError("embeddings must be rows for a release, got sizes alone")
        transform = self.transform
        if transform is None and isinstance(self.method, Method):
            transform = self.method.transform and self.method.transform.raw
        given = transform, self.partition, self.num_classes
        return Source.of(self.embeddings, *given, self.generator)

    @cached_property
    def size(self) -> FederationSize:
        """Public numbers on which settings that are left out depend."""
        if isinstance(self.embeddings, FederationSize):
            return self.embeddings
        source = self.source
        declared = () if source.embeddings is None else source.embeddings.declared_classes
        return FederationSize(
            sizes=source.users.sizes,
            num_classes=source.num_classes,
            class_names=class_names(declared, source.num_classes),
        )

    @property
    def findings(self) -> bool:
        """Whether the rows are known to have several findings each."""
        several = self.held is not None and self.held.findings is not None
        return several or bool(self.options.get("findings"))

    @property
    def public(self) -> PublicTransform:
        """The transform of the rows, before any first sum."""
        if not isinstance(self.embeddings, FederationSize):
            return self.source.transform
        if self.transform is None:
            raise ValueError("transform must be given with sizes alone, got None")
        return self.transform

    @property
    def draws(self) -> torch.Generator:
        """The generator given, or one from the operating system."""
        return system_generator() if self.generator is None else self.generator

    @cached_property
    def settings(self) -> Settings:
        """Transform and options: the one place where what is left out is filled in.

        Rows of a transform that has seen no public rows stay as they are, and one sum is enough for
        them; so it is where users are protected as a whole, or clipped, without a clip of the first
        sum. One owner of all rows, whom they cost nothing, makes further rounds where noise is
        small.

        A method of ours maps the rows itself, as its first sum says. Rows of one that we compare
        with are mapped here; Charter's cuts are as many as the smallest user can share out.

        Raises ValueError for a setting out of range, or a prior's file that does not fit.
        """
        transform, size, method = self.public, self.size, self.method
        if not isinstance(method, str):
            return Settings(transform, dict(self.options))
        names = class_names(size.class_names, size.num_classes)
        entry, rule = METHODS.get(method), rule_of(method)
        several = entry is not None and (not entry.classes or self.findings)
        found = with_shares(self.options, names, findings=several)
        if several and rule.l2_reg is not None:  # whose margins have no prevalences to set anew
            check.equal("private", prior=found.get("prior", "private"))
        mapped = not transform.is_identity
        discriminant = entry is not None and entry.sums_rows
        if method == "findings" and self.held is not None and self.held.meta.get("unknown") == ASK:
            found = {"unknown": ASK, **found}
        if method not in METHODS:
            noise, most = self.class_noise(), found.pop("components", None)
            if mapped and transform.directions is None:
                transform = transform.mapped(noise, most or components_of(rule, transform, noise))
            if method in CHARTER:
                rounds = min(2, int(size.sizes.min()) // 3)  # of 1 to 13, 2 bears least noise
                found = {"cut_rounds": max(1, rounds), **found}
            elif rule.l2_reg is not None:
                found = {"l2_reg": _within(rule.l2_reg * noise, L2_REGS), **found}
            return Settings(transform, found)
        if size.held_by == "strangers" and discriminant and len(size.sizes) >= MANY_USERS:
            lengths = honest_lengths(size.sizes)
            one = not mapped or found.get("sums") == 1
            found = {"user_clip": lengths[1] if one else lengths, **found}
        first_clip, clip = clips(found.get("user_clip"))
        if size.held_by != "process" and method == "discriminant":
            found = {"rounds": 0, **found}
        if mapped:
            apart = clip is not None or self.privacy.unit == "user"
            found = {"sums": 1 if apart and first_clip is None else 2, **found}
        if method == "discriminant" and clip is None and "rounds" not in found:
            quiet = 0 < self.class_noise(sums=found.get("sums", 1)) <= QUIET
            if len(size.sizes) == 1 and quiet:
                found["rounds"] = ROUNDS
        if "class_noise" not in found:
            share = found.get("sums", 1), found.get("rounds", 0)
            noise = self.class_noise(clip if rule.l2_reg is None else None, *share)
            if mapped:
                found |= {"class_noise": noise}
            if rule.l2_reg is not None:
                found = {"l2_reg": _within(rule.l2_reg * noise, L2_REGS), **found}
        if rule.l2_reg is not None and clip is None:  # which would shorten features with the head
            found = {"prior": "private" if several else "equal", **found}
        if "class_noise" in found and "components" not in found:
            found["components"] = components_of(rule, transform, found["class_noise"])
        return Settings(transform, found)

    def class_noise(self, user_clip: float | None = None, sums: int = 1, rounds: int = 0) -> float:
        """t of the method by name; 0 without noise.

        A users' clip C_u is known to sums: A <= C_u of users.
        """
        privacy, sizes, rule = self.privacy, self.size.sizes, rule_of(str(self.method))
        users, rows, classes = len(sizes), int(sizes.sum()), self.size.num_classes
        compositions = classes if rule.one_vs_rest else 1
        multiplier = accounting.noise_multiplier(privacy.epsilon, privacy.delta, compositions)
        certain = privacy.certain_shares(users, self.min_survivors)
        shared = privacy.noise_shares(users) / certain
        shares = {"shared": shared, "everybody's": users, "central": 1.0}
        together = group_sensitivity(
            1.0, sizes, sizes, unit=privacy.unit, group_size=privacy.group_size
        )
        if user_clip is not None and privacy.unit == "user":
            together = min(together, user_clip * privacy.group_size)
        noise = 2 * classes * multiplier * math.sqrt(shares[rule.noise]) * together / rows
        share = (1 - FIRST_SHARE if sums == 2 else 1.0) * (OWN_SHARE if rounds else 1.0)
        return noise / math.sqrt(share)

    @cached_property
    def built(self) -> Method:
        """The method with its settings.

        Raises ValueError for a setting out of range, or a method made for other rows.
        """
        if isinstance(self.method, str):
            return build_method(
                self.method, self.public, self.size.num_classes, self.settings.options
            )
        if self.options:
            raise ValueError(f"options must go into the Method itself, got {sorted(self.options)}")
        self.method.check(self.public, self.size.num_classes)
        return self.method

    def planned(self, *, discrete: bool) -> Plan:
        """All sums of the release, each of which is feasible; see `Plan.of`."""
        given = self.built, self.size.sizes, self.privacy, self.min_survivors
        return Plan.of(*given, discrete=discrete, generator=self.generator)

    def checked_noise(self) -> Noise:
        """The kind of noise; raises ValueError as `check_noise`."""
        noise = self.noise or "discrete"
        check_noise(noise, self.generator)
        return noise

    @property
    def done(self) -> int:
        """Number of sums of an earlier try, which its own entry in the ledger counts."""
        return 0 if self.centre is None else 1

    def spends(self) -> Mapping[str, Any]:
        """Fields with which `reserve` will be called, before any work; raises as `release`."""
        return self.planned(discrete=self.checked_noise() == "discrete").spends(self.done)

    @property
    def resolved(self) -> dict[str, Any]:
        """All settings, JSON-ready but for paths, as `--show-settings` and the report have them."""
        method, (transform, options) = self.method, self.settings
        found = {
            "method": method if isinstance(method, str) else method.name,
            "privacy": asdict(self.privacy),
            "users": len(self.size.sizes),
            "rows": int(self.size.sizes.sum()),
            "num_classes": self.size.num_classes,
            "clip_norm": transform.clip_norm,
            "options": dict(options),
        }
        if isinstance(method, str) and method not in METHODS:
            return found
        statistic: Any = self.built.statistic.unclipped
        made = {each.name: getattr(statistic, each.name) for each in fields(statistic)}
        words = {n: v for n, v in made.items() if isinstance(v, bool | int | float | str)}
        sums = 1 + self.built.rounds + (self.built.first is not None)
        return found | {"statistic": words, "sums": sums}

    def described(self) -> dict[str, Any]:
        """All settings, and what is known of the noise; needs no row."""
        own = isinstance(self.method, Method) or self.method in METHODS
        return self.resolved | {"noise": dict(self.spends()) if own else self.noise}


def check_noise(noise: Noise, generator: torch.Generator | None) -> None:
    """Raises ValueError for another kind of noise, or a generator for noise that is released."""
    check.one_of(get_args(Noise), noise=noise)
    if generator is not None and noise == "discrete":
        raise ValueError("generator must be None for noise 'discrete', which nothing reproduces")


def honest_lengths(sizes: Tensor) -> tuple[float, float]:
    """Norms that few honest users' vectors exceed, in the first sum and in class sums: c n, c √n.

    c is the rows' clip norm, √1.25. Rows have a mean in common, which the first sum finds: n of
    them are up to c n long. Class sums of n rows about it are about c √n long, without what public
    rows would add; a liar's could be c n long. Nine users in ten have n rows or fewer, so a tenth
    of the users cannot lengthen the clip by saying that they have more. Fewer than `MANY_USERS`,
    who know each other, keep all of their vectors. Heads, which have a length of their own, need no
    clip.
    """
    rows = int(sizes.sort().values[math.ceil(0.9 * len(sizes)) - 1])
    return round(math.sqrt(1.25) * rows, 1), round(math.sqrt(1.25 * rows), 1)


def components_of(rule: Rule, transform: PublicTransform, noise: float) -> int:
    """Number of directions q, fixed before any sum: enough for the rule's share of information."""
    if transform.known is not None:
        return min(MOST, transform.dim - 1)
    channel = Channel.of(transform.public, PLANNED_SHARE)
    return channel.count(noise, rule.information)


def rule_of(method: str) -> Rule:
    """Rule of a method of the registry or of a rival."""
    return METHODS[method].rule if method in METHODS else RIVALS.get(method, OTHERS)


def _within(value: float, bounds: tuple[float, float]) -> float:
    return min(max(value, bounds[0]), bounds[1])
