"""Graph of shared secrets in SecAgg (Bell et al., CCS 2020, against a malicious server).

Every user draws 32 fresh bytes and signs them with its keys; its *list* is k of the other users,
drawn from those bytes. It shares its secrets with its list, and masks with its list and with all
who have it on theirs. An honest user's list is therefore uniform and depends on nobody else's
choice, the server's nonce included: there is nothing to grind. Everyone who has a user's
advertisement can draw its list again.

Of w users at most C are corrupt, all of them the server's. What makes a session safe:

- *Signers.* A user reveals shares only for a pair (who shared keys U, who survived V) that
  `signers` >= (w + C)/2 + 1/2 users have signed. Two such quorums share more than C users, so an
  honest one, and it signs once: all honest users that reveal do so for one (U, V), and each secret
  of a user is revealed by honest users either as a survivor's or as a dropped user's.
- *Threshold.* Fewer than t users of an honest user's list are corrupt, so the secret that honest
  users do not reveal stays secret, and the other is revealed only if an honest user agrees, which
  it does for a survivor only if at least t of the survivor's list survived.
- *One sum.* Honest survivors are an edge apart if one is on the other's list: both masked along
  it, see `secagg.py`. A set S of honest survivors is opened alone if no edge leaves it, and only
  if S is closed in the sense of `separation.py`, whose bounds exclude small closed sets, and more
  than j honest signers outside a larger one. So what is opened is one sum, and it contains all
  honest signers but j: as if `certain` users survived, C of them corrupt. That is m_min wherever
  the stated dropouts leave m_min + j users to sign; the noise is planned for `certain` users.

(k, t) is the sparsest choice for which all of this fails with probability at most 2^-45 over all
users, whatever the server suppresses, and for which a session within the stated dropouts aborts,
some user's list left with fewer than t, with probability at most 2^-20; j is at most a hundredth of
w. Where no list shorter than half of the others will do, everyone is on everyone's list: counts are
exact, no edge is missing, and nothing can fail. A server that may start n sessions and goes on with
the one it likes best multiplies the probability by n: a user's host lets it start `STARTS` for each
session that was agreed, 2^-40 for them all.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from pretrain import check
from train_distributed.secure_sum.prg import WORD, stream
from train_distributed.secure_sum.separation import log_closed, log_strays, log_tail, log_tails

STARTS = 32  # sessions that a user begins for each one that it agreed to finish
SECRECY_BITS = 45  # -log2 of the probability, over all users, that a start loses secrecy
ABORT_BITS = 20  # likewise that a run within the stated dropouts aborts
_LN2 = math.log(2)


@dataclass(frozen=True)
class Degree:
    """A graph's parameters, and what they promise."""

    degree: int  # k, users on a list
    threshold: int  # t, shares that open a secret
    signers: int  # users that must sign a set of survivors before anyone reveals
    strays: int  # j, signers that a malicious server may keep out of the sum
    certain: int  # users, m_min or fewer by strays, that a sum is sure to hold if it is opened
    log2_insecure: float  # of the probability that any of the above fails; -inf where none can
    log2_aborts: float  # likewise that a run within the stated dropouts aborts


@lru_cache(maxsize=64)
def choose_degree(
    users: int, corrupt_fraction: float, dropout_fraction: float, minimum: int = 1
) -> Degree:
    """The sparsest graph that is safe and survives the stated dropouts.

    Args:
        users: w >= 2.
        corrupt_fraction: of the users, rounded down to whole users; in [0, 1).
        dropout_fraction: likewise.
        minimum: m_min, fewest users in a sum that is opened; in [1, w].

    Raises:
        ValueError: an argument outside its range, or fractions that no graph survives.
    """
    check.at_least(2, users=users)
    check.within(f"[1, {users}]", minimum=minimum)
    corrupt = whole_users(users, corrupt_fraction, "corrupt_fraction")
    dropped = whole_users(users, dropout_fraction, "dropout_fraction")
    quorum = (users + corrupt) // 2 + 1
    if users - dropped < quorum or users - 1 - dropped <= corrupt:
        raise ValueError(
            f"corrupt_fraction + 2 dropout_fraction must leave {quorum} of {users} users to sign, "
            f"got {corrupt_fraction} + 2 * {dropout_fraction}"
        )
    degree = 2
    while 2 * degree < users - 1:
        found = _graph(users, corrupt, dropped, degree, quorum, minimum)
        if found:
            return found
        degree += max(1, degree // 64)
    threshold = min(quorum, users - 1 - dropped)
    signers = max(quorum, minimum)
    return Degree(users - 1, threshold, signers, 0, minimum, -math.inf, -math.inf)


def whole_users(users: int, fraction: float, name: str) -> int:
    """floor(fraction * users), the fraction read as the decimal number it is written as.

    Raises:
        ValueError: a fraction outside [0, 1), under the argument's name.
    """
    check.within("[0, 1)", **{name: fraction})
    return math.floor(Fraction(str(fraction)) * users)


def draw_list(seed: bytes, others: int, degree: int) -> list[int]:
    """The list drawn from 32 bytes: `degree` of the numbers below `others`, as drawn.

    They are words of the seed's stream modulo `others`, repetitions left out. A word has 2^64
    values, so no list is more than 1 + 2^-30 times as likely as another.

    If there are no more than `degree` numbers, these are all, in order.
    """
    if degree >= others:
        return list(range(others))
    count = 2 * degree + 32
    while True:
        words = np.concatenate([words.copy() for _, words in stream(seed, count)])
        drawn = dict.fromkeys((words.view(WORD) % np.uint64(others)).tolist())
        if len(drawn) >= degree:
            return list(drawn)[:degree]
        count *= 2


def _graph(
    users: int, corrupt: int, dropped: int, degree: int, quorum: int, minimum: int
) -> Degree | None:
    """The graph of a degree if it keeps both promises; half of the probability for either bound."""
    allowed = -(SECRECY_BITS + 1) * _LN2
    aborts = log_tails(users - 1, dropped, degree) + math.log(users)
    lost = int(np.count_nonzero(aborts > -ABORT_BITS * _LN2)) - 1  # of a list, at most
    threshold = degree - lost
    single = log_tail(users - 1, np.array([corrupt]), degree, threshold)[0]
    if threshold < 1 or single + math.log(users - corrupt) > allowed:
        return None
    sums = log_closed(users, corrupt, degree, threshold)
    closed = int(np.searchsorted(sums, allowed, "right"))

    def signing(strays: int) -> int:  # never more than the stated dropouts leave
        return max(quorum, minimum, min(minimum + strays, users - dropped))

    def failing(strays: int) -> float:
        return log_strays(users, corrupt, degree, strays, signing(strays), closed)

    low, high = 0, users // 100
    if failing(high) > allowed:
        return None
    while low < high:  # fewer strays are more likely exceeded
        middle = (low + high) // 2
        low, high = (low, middle) if failing(middle) <= allowed else (middle + 1, high)
    signers = signing(low)
    if signers > users or signers - corrupt <= 2 * low:
        return None
    insecure = np.logaddexp(sums[closed - 1], failing(low)) / _LN2
    aborted = aborts[lost + 1] / _LN2 if lost < degree else -math.inf
    certain = min(minimum, signers - low)
    return Degree(degree, threshold, signers, low, certain, float(insecure), float(aborted))
