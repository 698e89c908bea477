"""Who shares secrets with whom in SecAgg+ (Bell et al., CCS 2020), and how many shares open one.

Users stand on a ring in an order drawn from the session's digest; each has k/2 neighbours on either
side. Everyone can compute the graph, so the server cannot choose anyone's neighbours.

With C corrupt and at most D dropped of w users in random places, and X ~ hypergeometric(w-1, C, k)
corrupt neighbours, Y ~ hypergeometric(w-1, D, k) dropped ones, (k, t) is the sparsest choice for
which these are improbable for all users together:

- *some user has more than c corrupt neighbours*: w P[X > c] ≤ 2^-40. Then t > (k + c)/2 keeps a
  user's two secrets apart even from a server that tells neighbours different stories: c corrupt
  neighbours give shares of both, each honest one of the k - c gives one, and two times t shares
  would need 2t ≤ 2c + (k - c).
- *the honest survivors are not connected*: only k/2 consecutive corrupt or dropped users cut the
  ring, probability at most w ((C + D)/w)^(k/2) ≤ 2^-40. The server would learn each part's sum.
- *some user loses so many neighbours that its mask cannot be opened*: w P[Y > k - t] ≤ 2^-20. This
  costs the run, never privacy: it aborts and nothing is revealed.

k grows with log w. Where no ring satisfies all three, all users are neighbours and the counts are
exact: c = C, and D dropouts leave w - 1 - D ≥ t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from train_distributed.secure_sum.fixed_point import WORD
from train_distributed.secure_sum.prg import derive, stream

SECRECY_BITS = 40  # -log2 of the probability that secrecy is lost, over all users
ABORT_BITS = 20  # likewise that a run within the stated dropouts aborts


@dataclass(frozen=True)
class Degree:
    """A graph's parameters."""

    degree: int  # k, neighbours of a user
    threshold: int  # t, shares that open a secret


def choose_degree(users: int, corrupt_fraction: float, dropout_fraction: float) -> Degree:
    """The sparsest graph that is safe and survives the stated dropouts.

    Args:
        users: w >= 2.
        corrupt_fraction: of the users, rounded down to whole users; in [0, 1).
        dropout_fraction: likewise.

    Raises:
        ValueError: an argument outside its range, or fractions that no graph survives.
    """
    if users < 2:
        raise ValueError(f"users must be >= 2, got {users}")
    corrupt = whole_users(users, corrupt_fraction, "corrupt_fraction")
    dropped = whole_users(users, dropout_fraction, "dropout_fraction")
    lost, aborted = 2.0**-SECRECY_BITS / users, 2.0**-ABORT_BITS / users
    for degree in range(2, users - 1, 2):
        most_corrupt = _exceeded_with(users - 1, corrupt, degree, lost)
        threshold = (degree + most_corrupt) // 2 + 1
        most_dropped = _exceeded_with(users - 1, dropped, degree, aborted)
        connected = ((corrupt + dropped) / users) ** (degree / 2) <= lost
        if connected and degree - most_dropped >= threshold:
            return Degree(degree, threshold)
    threshold = (users - 1 + corrupt) // 2 + 1
    if users - 1 - dropped < threshold:
        raise ValueError(
            f"corrupt_fraction + 2 dropout_fraction must leave {threshold} of {users - 1} "
            f"neighbours, got {corrupt_fraction} + 2 * {dropout_fraction} for {users} users"
        )
    return Degree(users - 1, threshold)


def whole_users(users: int, fraction: float, name: str) -> int:
    """floor(fraction * users), the fraction read as the decimal number it is written as.

    Raises:
        ValueError: a fraction outside [0, 1), under the argument's name.
    """
    if not 0 <= fraction < 1:
        raise ValueError(f"{name} must be in [0, 1), got {fraction}")
    return math.floor(Fraction(str(fraction)) * users)


def neighbours(digest: bytes, order: Sequence[int], degree: int) -> dict[int, frozenset[int]]:
    """The graph of a session.

    Args:
        digest: of the session; fixes everyone's place.
        order: all users.
        degree: k, even unless all are neighbours.

    Returns:
        User -> its neighbours.
    """
    if degree >= len(order) - 1:
        everyone = frozenset(order)
        return {user: everyone - {user} for user in order}
    keys = np.concatenate([w.copy() for _, w in stream(derive(digest, b"graph"), len(order))])
    ring = [order[i] for i in np.argsort(keys.view(WORD), kind="stable")]
    near = [*range(-(degree // 2), 0), *range(1, degree // 2 + 1)]
    size = len(ring)
    return {u: frozenset(ring[(p + o) % size] for o in near) for p, u in enumerate(ring)}


def _exceeded_with(population: int, marked: int, draws: int, allowed: float) -> int:
    """The smallest c with P[X > c] <= allowed, X ~ hypergeometric(population, marked, draws)."""
    x = np.arange(min(marked, draws) + 1)
    logs = _log_choose(marked, x) + _log_choose(population - marked, draws - x)
    mass = np.exp(logs - _log_choose(population, np.asarray(draws)))
    at_least = np.cumsum(mass[::-1])[::-1]  # P[X >= x]
    return int(np.count_nonzero(at_least > allowed)) - 1


def _log_choose(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
    possible = (k >= 0) & (k <= n)
    inside = np.clip(k, 0, n)
    value = gammaln(n + 1) - gammaln(inside + 1) - gammaln(n - inside + 1)
    return np.where(possible, value, -np.inf)
