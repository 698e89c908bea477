"""Degree and threshold keep their promises; the graph is everyone's to check."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest

from train_distributed.secure_sum.graph import choose_degree, neighbours, whole_users


def _at_least(population: int, marked: int, draws: int, x: int) -> Fraction:
    """P[X >= x] of the hypergeometric law, exactly."""
    ways = sum(
        math.comb(marked, i) * math.comb(population - marked, draws - i)
        for i in range(x, min(marked, draws) + 1)
    )
    return Fraction(ways, math.comb(population, draws))


@pytest.mark.parametrize(("corrupt", "dropout"), [(0.1, 0.1), (0.1, 0.2), (0.3, 0.05), (0.0, 0.3)])
@pytest.mark.parametrize("w", [100, 400, 1500])
def test_the_failure_probabilities_are_as_stated(w: int, corrupt: float, dropout: float) -> None:
    graph = choose_degree(w, corrupt, dropout)
    k, t = graph.degree, graph.threshold
    c, d = int(w * corrupt + 1e-9), int(w * dropout + 1e-9)
    if k == w - 1:
        assert 2 * t > k + c
        assert w - 1 - d >= t
        return
    most = 2 * t - k - 1  # the most corrupt neighbours with 2t > k + c
    assert w * _at_least(w - 1, c, k, most + 1) <= Fraction(1, 2**40) * Fraction(1001, 1000)
    assert w * _at_least(w - 1, d, k, k - t + 1) <= Fraction(1, 2**20) * Fraction(1001, 1000)
    assert w * ((c + d) / w) ** (k / 2) <= 2.0**-40


def test_the_degree_grows_like_the_logarithm() -> None:
    degrees = [choose_degree(10**e, 0.1, 0.1).degree for e in (3, 4, 5, 6)]
    assert all(later - earlier <= 40 for earlier, later in pairwise(degrees))


@pytest.mark.parametrize("w", range(2, 40))
def test_small_groups_are_safe_and_survive(w: int) -> None:
    graph = choose_degree(w, 0.1, 0.2)
    assert w - 1 - w // 5 >= graph.threshold or graph.degree < w - 1
    assert 2 * graph.threshold > graph.degree + min(w // 10, graph.degree)


def test_fractions_that_no_graph_survives_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must leave 8 of 9 neighbours, got 0\.6 \+ 2 \* 0\.2"):
        choose_degree(10, 0.6, 0.2)
    with pytest.raises(ValueError, match="users must be >= 2, got 1"):
        choose_degree(1, 0.1, 0.1)
    with pytest.raises(ValueError, match=r"corrupt_fraction must be in \[0, 1\), got 1\.0"):
        choose_degree(5, 1.0, 0.1)


def test_fractions_are_read_as_decimals() -> None:
    assert whole_users(100, 0.07, "f") == 7  # 0.07 * 100 < 7 in doubles
    assert whole_users(100, 0.29, "f") == 29


@pytest.mark.parametrize(("w", "k"), [(50, 10), (11, 10), (9, 8), (301, 40)])
def test_the_graph_is_regular_symmetric_and_connected(w: int, k: int) -> None:
    order = tuple(range(5, 5 + w))
    graph = neighbours(b"d" * 32, order, k)
    assert all(len(near) == k and user not in near for user, near in graph.items())
    assert all(user in graph[peer] for user, near in graph.items() for peer in near)
    reached, frontier = {5}, {5}
    while frontier:
        frontier = {p for u in frontier for p in graph[u]} - reached
        reached |= frontier
    assert reached == set(order)


def test_places_on_the_ring_depend_on_the_session_alone() -> None:
    order = tuple(range(100))
    first, again, other = (neighbours(d * 32, order, 6) for d in (b"a", b"a", b"b"))
    assert first == again
    assert sum(first[u] == other[u] for u in order) < 5
