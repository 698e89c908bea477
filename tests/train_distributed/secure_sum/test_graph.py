"""Degree, threshold and quorum keep their promises; lists are everyone's to check."""

import math
from fractions import Fraction

import numpy as np
import pytest

from train_distributed.secure_sum.graph import choose_degree, draw_list, whole_users
from train_distributed.secure_sum.prg import derive
from train_distributed.secure_sum.separation import (
    log_apart,
    log_closed,
    log_strays,
    log_tail,
    log_tails,
)

FRACTIONS = [(0.1, 0.1), (0.1, 0.2), (0.3, 0.05), (0.0, 0.3), (0.2, 0.1)]


def _at_least(population: int, marked: int, draws: int, x: int) -> Fraction:
    """P[X >= x] of the hypergeometric law, exactly."""
    ways = sum(
        math.comb(marked, i) * math.comb(population - marked, draws - i)
        for i in range(x, min(marked, draws) + 1)
    )
    return Fraction(ways, math.comb(population, draws))


@pytest.mark.parametrize(("corrupt", "dropout"), FRACTIONS)
@pytest.mark.parametrize("w", [20, 50, 100, 400, 1500])
def test_the_failure_probabilities_are_as_stated(w: int, corrupt: float, dropout: float) -> None:
    graph = choose_degree(w, corrupt, dropout, w // 2 + 1)
    k, t = graph.degree, graph.threshold
    c, d = int(w * corrupt + 1e-9), int(w * dropout + 1e-9)
    assert 2 * graph.signers - w > c  # two quorums share an honest user
    assert graph.signers >= w // 2 + 1 + graph.strays
    assert graph.strays <= w / 100
    if k == w - 1:
        assert c < t <= w - 1 - d
        assert (graph.log2_insecure, graph.strays) == (-math.inf, 0)
        return
    assert w * _at_least(w - 1, c, k, t) <= Fraction(1, 2**45)
    assert w * _at_least(w - 1, d, k, k - t + 1) <= Fraction(1, 2**20)
    assert graph.log2_insecure <= -45
    assert graph.log2_aborts <= -20


@pytest.mark.parametrize("w", [100, 200, 1000])
def test_the_sum_over_closed_sets_is_the_exact_one(w: int) -> None:
    """With integers; blocks of set sizes charge a little more, never less."""
    graph = choose_degree(w, 0.1, 0.2, w // 2 + 1)
    c, sums = w // 10, log_closed(w, w // 10, graph.degree, graph.threshold)
    exact = Fraction(0)
    for s in range(1, 8):
        p = _at_least(w - 1, c + s - 1, graph.degree, graph.threshold)
        exact += math.comb(w - c, s) * p**s
        expected = math.log(exact) if exact else -math.inf
        assert sums[s - 1] == pytest.approx(expected, abs=1e-6)
    large = min(len(sums), 300)
    p = _at_least(w - 1, c + large - 1, graph.degree, graph.threshold)
    alone = math.log(math.comb(w - c, large)) + large * math.log(p)
    assert sums[large - 1] >= alone - 1e-6


def test_tails_are_the_hypergeometric_ones() -> None:
    for x in range(11):
        exact = _at_least(60, 21, 10, x)
        assert log_tails(60, 21, 10)[x] == pytest.approx(math.log(exact), abs=1e-9)
        assert log_tail(60, np.array([21]), 10, x)[0] == pytest.approx(math.log(exact), abs=1e-9)
    assert log_tail(60, np.array([3]), 10, 4)[0] == -math.inf


def test_strays_are_no_more_frequent_than_bounded() -> None:
    """60 honest users, lists of 4: how many of 58 are no edge from two given ones, tried."""
    generator, w, k, x, trials = np.random.default_rng(0), 60, 4, 2, 4000
    apart = np.zeros(trials)
    for trial in range(trials):
        lists = np.argsort(generator.random((w, w - 1)), 1)[:, :k]
        lists += lists >= np.arange(w)[:, None]
        edge = np.zeros((w, w), bool)
        np.put_along_axis(edge, lists, True, 1)
        apart[trial] = (~(edge | edge.T)[:x, x:].any(0)).sum()
    for least in (48, 49, 50):
        bound = math.exp(log_apart(w, 0, k, np.array([x]), np.array([least]))[0])
        tried = float((apart >= least).mean())
        assert 0.002 < tried <= bound < 0.95
    one = log_apart(w, 0, k, np.array([1]), np.array([58]))[0] + math.log(60)
    two = log_apart(w, 0, k, np.array([2]), np.array([58]))[0] + math.log(60 * 59 / 2)
    assert log_strays(w, 0, k, 0, 59, 57) == pytest.approx(np.logaddexp(one, two))


def test_the_degree_grows_like_the_logarithm() -> None:
    degrees = [choose_degree(10**e, 0.1, 0.1, 10**e // 2).degree for e in (3, 4, 5)]
    assert degrees[1] - degrees[0] <= 15
    assert degrees[2] - degrees[1] <= 15


@pytest.mark.parametrize("w", range(2, 60))
def test_small_groups_are_safe_and_survive(w: int) -> None:
    graph = choose_degree(w, 0.1, 0.2)
    assert graph.threshold > w // 10
    assert w - w // 5 >= max(graph.signers, graph.threshold + 1)


def test_a_minimum_above_the_quorum_is_what_must_sign() -> None:
    assert choose_degree(20, 0.1, 0.2, 17).signers == 17
    graph = choose_degree(1000, 0.1, 0.2, 750)
    assert (graph.signers, graph.certain) == (750 + graph.strays, 750)


def test_the_stated_dropouts_leave_enough_to_sign_and_the_noise_is_planned_for_the_rest() -> None:
    graph = choose_degree(1000, 0.1, 0.2, 800)
    assert graph.strays > 0
    assert (graph.signers, graph.certain) == (800, 800 - graph.strays)
    strict = choose_degree(1000, 0.1, 0.1, 950)  # more than the stated dropouts leave: as asked
    assert (strict.signers, strict.certain) == (950, 950 - strict.strays)


def test_fractions_that_no_graph_survives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"leave 9 of 10 users to sign, got 0\.6 \+ 2 \* 0\.2"):
        choose_degree(10, 0.6, 0.2)
    with pytest.raises(ValueError, match="users must be >= 2"):
        choose_degree(1, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"corrupt_fraction must be in \[0, 1\)"):
        choose_degree(5, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"minimum must be in \[1, 5\]"):
        choose_degree(5, 0.1, 0.1, 6)


def test_fractions_are_read_as_decimals() -> None:
    assert whole_users(100, 0.07, "f") == 7  # 0.07 * 100 < 7 in doubles
    assert whole_users(100, 0.29, "f") == 29


@pytest.mark.parametrize(("others", "k"), [(49, 10), (10, 10), (8, 20), (300, 299), (300, 40)])
def test_a_list_has_distinct_users_and_is_the_same_for_everyone(others: int, k: int) -> None:
    drawn = draw_list(b"s" * 32, others, k)
    assert len(set(drawn)) == len(drawn) == min(k, others)
    assert set(drawn) <= set(range(others))
    assert draw_list(b"s" * 32, others, k) == drawn
    if k < others:
        assert draw_list(b"t" * 32, others, k) != drawn


def test_every_user_is_as_likely_on_a_list() -> None:
    others, k, lists = 50, 10, 4000
    counts = np.zeros(others)
    pairs = np.zeros((others, others))
    for i in range(lists):
        drawn = draw_list(derive(i.to_bytes(4, "big"), b""), others, k)
        counts[drawn] += 1
        pairs[np.ix_(drawn, drawn)] += 1
    mean, spread = lists * k / others, math.sqrt(lists * 0.2 * 0.8)
    assert np.abs(counts - mean).max() < 4.5 * spread
    off = pairs[~np.eye(others, dtype=bool)]
    chance = k * (k - 1) / (others * (others - 1))
    assert np.abs(off - lists * chance).max() < 5.5 * math.sqrt(lists * chance)
