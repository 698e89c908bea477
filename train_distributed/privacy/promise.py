"""The promise of a release: ε, δ, unit of protection, honest fraction."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, get_args

from pretrain import check

if TYPE_CHECKING:
    from torch import Tensor

Unit = Literal["record", "user"]
NoiseBy = Literal["users", "servers"]
SERVERS = 2  # that add noise, where servers do
LEAST_PROMISE = 1e-60  # of ε and δ together: below it noise of 1/ε would overflow in squares


@dataclass(frozen=True)
class Privacy:
    """(ε, δ) for neighbours that differ by replacing records; numbers of rows n_i are public.

    The adversary sees the released model and knows the noise of every dishonest user. Where each of
    two servers adds all the noise that is needed, it knows the noise of one server, and everything
    of all other users.

    Examples:
        >>> promise = Privacy(epsilon=0.5, delta=1e-5, unit="user")
        >>> promise.report()["neighbouring"]
        'replace all records of one user; the number of rows of every user is public'
        >>> promise.fraction(100)
        Fraction(1, 2)
        >>> Privacy(epsilon=0.0, delta=1e-5).validate()
        Traceback (most recent call last):
        ValueError: epsilon must be > 0, got 0.0
    """

    epsilon: float  # privacy loss ε > 0; inf: not private
    delta: float  # failure probability δ in (0, 1)
    honest_fraction: float | None = None  # share of honest users (default: 0.5; one user: 1)
    unit: Unit = "record"  # one record is protected, or all of one user
    group_size: int = 1  # number of units that are protected together
    noise_by: NoiseBy = "users"  # who adds noise: each user a share, or each of two servers all

    def validate(self) -> None:
        """Raises ValueError for a field out of range."""
        check.number(epsilon=self.epsilon, delta=self.delta)
        if not self.epsilon > 0:
            raise ValueError(f"epsilon must be > 0, got {self.epsilon}")
        check.within("(0, 1)", delta=self.delta)
        if max(self.epsilon, self.delta) < LEAST_PROMISE:
            raise ValueError(
                f"epsilon or delta must be >= {LEAST_PROMISE:g}, as squares of the noise must be "
                f"finite, got {self.epsilon} and {self.delta}"
            )
        check.within("(0, 1]", **check.drop_none(honest_fraction=self.honest_fraction))
        check.one_of(get_args(Unit), unit=self.unit)
        check.one_of(get_args(NoiseBy), noise_by=self.noise_by)
        if self.noise_by == "servers":
            check.not_set("where servers add the noise", honest_fraction=self.honest_fraction)
        check.at_least(1, group_size=self.group_size)
        if self.group_size % 1:
            raise ValueError(f"group_size must be a whole number, got {self.group_size}")

    def large_delta(self, rows: int) -> dict[str, str]:
        """Word for a report where δ is 1/rows or more; nothing where it is less."""
        if not self.private or self.delta * rows < 1:
            return {}
        return {
            "large_delta": f"delta is 1/{rows} or more: who publishes one of the {rows} rows, "
            "drawn at random, keeps such a promise"
        }

    def refuse_large_delta(self, rows: int, *, allowed: bool) -> None:
        """Raises ValueError for such a δ, unless somebody has allowed it."""
        if self.large_delta(rows) and not allowed:
            raise ValueError(
                f"delta must be < 1/rows = 1/{rows} for a release, as who publishes a random row "
                f"keeps such a promise (or allow_delta), got {self.delta}"
            )

    @property
    def private(self) -> bool:
        """True where ε is finite."""
        return math.isfinite(self.epsilon)

    def report(self) -> dict[str, Any]:
        """The promise in words, JSON-ready; the same for every method."""
        unit = "one record" if self.unit == "record" else "all records of one user"
        if self.group_size > 1:
            unit = f"{self.group_size} {'records' if self.unit == 'record' else 'users'}"
        return {
            "private": self.private,
            "epsilon": self.epsilon if self.private else "not private",
            "delta": self.delta,
            "neighbouring": f"replace {unit}; the number of rows of every user is public",
        }

    def fraction(self, users: int) -> Fraction:
        """t as the decimal number that was written: 0.07 of 100 users is 7, not 7.000…1."""
        if self.honest_fraction is None:
            return Fraction(1) if users == 1 else Fraction(1, 2)
        return Fraction(repr(float(self.honest_fraction)))

    def noise_shares(self, users: int) -> int:
        """Shares of the noise in a sum over so many users."""
        return SERVERS if self.noise_by == "servers" else users

    def certain_shares(self, users: int, min_survivors: int | None = None) -> int:
        """H, shares of the noise that nobody else knows: of honest users, or of one server.

        Raises:
            ValueError: m_min outside [1, w], or no certainly honest user.
        """
        if self.noise_by == "users":
            return honest_users(users, self.fraction(users), min_survivors)
        check.within(f"[1, {users}]", **check.drop_none(min_survivors=min_survivors))
        return 1


def honest_users(users: int, fraction: Fraction, min_survivors: int | None = None) -> int:
    """Least number of honest users in a release: H = m_min − ⌊(1 − t) w⌋.

    Dishonest users may be among those that stay when others drop out, so "t times the survivors"
    would be too many.

    Of the w users that were invited a fraction t is honest; below m_min survivors (None: w) nothing
    is ever opened.

    Raises:
        ValueError: m_min outside [1, w], or no certainly honest user.
    """
    least = users if min_survivors is None else min_survivors
    check.within(f"[1, {users}]", min_survivors=least)
    honest = least - math.floor((1 - fraction) * users)
    if honest < 1:
        raise ValueError(
            "min_survivors - floor((1 - honest_fraction) * users) must be >= 1, one certainly "
            f"honest user, got {honest} (min_survivors {least}, honest_fraction "
            f"{float(fraction)}, users {users})"
        )
    return honest


def group_sensitivity(
    record: float, reach: "Tensor", sizes: "Tensor", *, unit: Unit, group_size: int
) -> float:
    """L2 movement of the sum of submissions when a group of units is replaced.

    Records spread over users in the worst way: max Σ min(g_i u, r_i) over Σ g_i = G, g_i ≤ n_i.
    Each user's term is concave in g_i, so the G largest increments, taken greedily, are the
    maximum: u for the first ⌊r_i/u⌋ records of a user, the remainder for the next one. Users: the
    G largest r_i.

    Args:
        record: u, what one record moves one user's submission.
        reach: (users,) r_i, what replacing all of a user's records moves it at most.
        sizes: (users,) n_i.
        unit: "record" or "user".
        group_size: G, of such units.
    """
    if unit == "user":
        largest = reach.double().sort(descending=True).values[:group_size]
        return largest.sum().item()
    whole = (reach.double() / record).floor().minimum(sizes.double())
    in_full = whole.sum().item()
    if in_full >= group_size:
        return group_size * record
    rest = (reach.double() - whole * record).where(whole < sizes, 0.0)
    missing = min(group_size - int(in_full), len(rest))
    return in_full * record + rest.sort(descending=True).values[:missing].sum().item()
