"""Chance that a server can split users who chose their lists themselves: union bounds in logs.

Of w users C are corrupt and h = w - C honest. An honest user's list is k of the other w - 1,
uniform and independent of every other list and of who is corrupt. The server sees all lists and
then picks whom it suppresses, so a bound must hold for all choices of sets at once.

**Closed sets.** S is closed if each of its users has at least t of its k choices in S or among the
corrupt: with p_s = P[Hyp(w-1, C+s-1, k) >= t] the expected number of closed sets of s honest users
is at most C(h, s) p_s^s. s = 1: some honest user has t corrupt choices.

**Strays.** x users stray from S if no choice of either side hits the other. Whether a user outside
a fixed X is hit by no choice of X and hits X with none of its own is decided, for all such users
together, by negatively associated indicators (each list is a random permutation's head, lists are
independent; Joag-Dev and Proschan 1983), each true with probability q_x. So of the n = h - x users
more than s stray from X with probability at most exp(-n KL(s/n || q_x)) (Chernoff), and C(h, x)
choices of X multiply it.
"""

import math

import numpy as np
import scipy  # scipy.special comes when it is asked for
from numpy.typing import ArrayLike, NDArray

_EXACT = 256  # set sizes at which p_s is evaluated itself; larger ones in blocks of 1/64
Floats = NDArray[np.float64]


def log_tail(population: int, marked: NDArray[np.int64], draws: int, least: int) -> Floats:
    """Log of P[X >= least] for X ~ hypergeometric(population, marked, draws), at every `marked`."""
    hits, many = np.arange(least, draws + 1), marked[:, None]
    logs = _log_choose(many, hits) + _log_choose(population - many, draws - hits)
    total = _log_choose(population, draws)
    if not len(hits):
        return np.full(len(marked), -np.inf)
    return np.minimum(np.logaddexp.reduce(logs, 1) - total, 0)


def log_tails(population: int, marked: int, draws: int) -> Floats:
    """Log of P[X >= x] for x = 0, ..., draws."""
    hits = np.arange(draws + 1)
    logs = _log_choose(marked, hits) + _log_choose(population - marked, draws - hits)
    total = _log_choose(population, draws)
    return np.minimum(np.logaddexp.accumulate(logs[::-1])[::-1] - total, 0)


def log_closed(users: int, corrupt: int, degree: int, threshold: int) -> Floats:
    """Log of the expected number of closed sets of at most s honest users, s = 1, ..., h.

    p_s grows with s, so each block of sizes is charged with that of its largest.
    """
    honest = users - corrupt
    ends, last = [], 0
    while last < honest:
        last = min(honest, last + max(1, (last - _EXACT) // 64))
        ends.append(last)
    tops = np.array(ends)
    each = log_tail(users - 1, corrupt + tops - 1, degree, threshold)
    sizes = np.arange(1, honest + 1)
    charged = each[np.searchsorted(tops, sizes)]
    counts = _log_choose(honest, sizes)
    return np.logaddexp.accumulate(counts + sizes * charged)


def log_strays(
    users: int, corrupt: int, degree: int, strays: int, signers: int, closed: int
) -> float:
    """Log of the probability that more than j `strays` of the signers stray from an opened set.

    At most C signers are corrupt; all others are in the opened set, which has more than `closed`
    users, or stray.
    """
    honest = users - corrupt
    x = np.arange(strays + 1, honest - closed)
    if not len(x):
        return -math.inf
    least = np.maximum(closed + 1, signers - corrupt - x)
    counts = _log_choose(honest, x)
    return float(np.logaddexp.reduce(counts + log_apart(users, corrupt, degree, x, least)))


def log_apart(
    users: int, corrupt: int, degree: int, strays: NDArray[np.int64], least: NDArray[np.int64]
) -> Floats:
    """Log of a bound on the probability that `least` honest users stray from given `strays`."""
    others = users - corrupt - strays
    log_q = (
        _log_choose(users - 1 - strays, degree)
        - _log_choose(users - 1, degree)
        + strays * math.log1p(-degree / (users - 1))
    )
    share = np.minimum(least / others, 1)
    bound = -others * _divergence(share, log_q)
    return np.where(least <= others, bound, -np.inf)


def _divergence(share: Floats, log_q: Floats) -> Floats:
    """KL(share || q) where share > q, else 0."""
    left = np.clip(1 - share, 0, None)
    high = scipy.special.xlogy(share, share) - share * log_q
    low = scipy.special.xlogy(left, left) - left * np.log1p(-np.exp(np.minimum(log_q, -1e-12)))
    return np.where(np.log(share) > log_q, np.maximum(high + low, 0), 0)


def _log_choose(n: ArrayLike, k: ArrayLike) -> Floats:
    """Log of C(n, k); -inf where there is no such choice."""
    n, k = np.asarray(n), np.asarray(k)
    possible = (k >= 0) & (k <= n)
    inside, size = np.where(possible, k, 0), np.maximum(n, 0)
    gammaln = scipy.special.gammaln
    value = gammaln(size + 1) - gammaln(inside + 1) - gammaln(size - inside + 1)
    return np.where(possible, value, -np.inf)
