"""Choosing among very many graphs gains the server nothing."""

import numpy as np
import pytest
from numpy.typing import NDArray

from train_distributed.secure_sum.graph import Degree, choose_degree

SIZES = [100, 200, 1000]
MANY = 2**20


def _lists(
    generator: np.random.Generator, w: int, corrupt: int, degree: int, graphs: int = 1
) -> NDArray[np.bool_]:
    """(graphs * h, w) bool: whom each honest user has on its list; the first users are corrupt.

    Floyd's sampling without repetition, a step for all lists at once. Place `corrupt + i` of user
    i's own row stands for user w - 1, and the two change places at the end.
    """
    honest = w - corrupt
    chosen = np.zeros(graphs * honest * w, bool)
    start = np.arange(graphs * honest) * w
    for last in range(w - 1 - degree, w - 1):
        drawn = start + generator.integers(0, last + 1, len(start), dtype=np.uint16)
        chosen[np.where(chosen[drawn], start + last, drawn)] = True
    own = start + corrupt + np.tile(np.arange(honest), graphs)
    chosen[start + w - 1] = chosen[own]
    chosen[own] = False
    return chosen.reshape(-1, w)


def _greedy(chosen: NDArray[np.bool_], corrupt: int, graph: Degree) -> tuple[int, int]:
    """The server's best: a closed set grown from the user with most corrupt choices.

    Whoever helps its members most joins until each has `threshold` choices inside or corrupt. The
    server then suppresses as many others as it may and keeps those without an edge to the set.

    Returns:
        The set's size, and how many signers could be shown a story and stay out of the sum.
    """
    honest = chosen[:, corrupt:]
    lacking = graph.threshold - chosen[:, :corrupt].sum(1)
    inside = np.zeros(len(honest), bool)
    joins = int(lacking.argmin())
    while True:
        inside[joins] = True
        lacking -= honest[:, joins]
        needy = inside & (lacking > 0)
        if not needy.any():
            break
        help_given = honest[needy].sum(0) - np.maximum(lacking, 0) / graph.degree
        help_given[inside] = -np.inf
        joins = int(help_given.argmax())
    touched = honest[inside].any(0) | honest[:, inside].any(1)
    return int(inside.sum()), int((~touched & ~inside).sum())


@pytest.mark.parametrize("w", SIZES)
def test_a_greedy_server_separates_nobody(w: int) -> None:
    """Also from a graph whose first victim has the most corrupt choices of 2^20 graphs."""
    corrupt, minimum = w // 10, w // 2 + 1
    graph, generator = choose_degree(w, 0.1, 0.2, minimum), np.random.default_rng(w)
    for trial in range(12 if w < 1000 else 4):
        chosen = _lists(generator, w, corrupt, graph.degree)
        if trial % 2:  # all but one of the corrupt choices that would give the victim away
            most = min(graph.threshold - 1, corrupt)
            chosen[0] = False
            chosen[0, :most] = True
            chosen[0, corrupt + 1 : corrupt + 1 + graph.degree - most] = True
        size, strays = _greedy(chosen, corrupt, graph)
        assert strays <= graph.strays
        assert size > graph.signers - corrupt - graph.strays or strays == 0
        assert size > w // 5  # no small set is closed


def test_the_greedy_server_wins_where_the_threshold_is_too_low() -> None:
    """The search finds what there is: with lists of 6 and threshold 3, small closed sets."""
    generator = np.random.default_rng(0)
    weak = Degree(6, 3, 101, 0, 101, 0.0, 0.0)
    found = [_greedy(_lists(generator, 200, 40, 6), 40, weak) for _ in range(20)]
    assert min(size for size, _ in found) <= 3
    assert max(strays for _, strays in found) > 100


def _isolating(chosen: NDArray[np.bool_], corrupt: int, graph: Degree) -> int:
    """How many signers a server isolates that suppresses their neighbours, fewest first.

    The rest must be enough to sign with it and the corrupt.
    """
    lists = chosen[:, corrupt:]
    edges = lists | lists.T
    isolated, silent = np.zeros(len(edges), bool), np.zeros(len(edges), bool)
    while True:
        gone = isolated | silent
        cost = (edges[:, ~gone]).sum(1, dtype=np.int32)
        cost[gone] = len(edges)  # its neighbours stray with it, or are silent
        joins = int(cost.argmin())
        isolated[joins] = True
        silent |= edges[joins] & ~isolated
        silent[joins] = False
        if len(edges) - silent.sum() < graph.signers - corrupt:
            return int(isolated.sum()) - 1


def test_an_isolating_server_wins_where_lists_are_short() -> None:
    """The search finds what there is: lists of 3 leave many within the quorum alone."""
    weak = Degree(3, 2, 111, 0, 101, 0.0, 0.0)
    assert _isolating(_lists(np.random.default_rng(0), 200, 20, 3), 20, weak) > 10


@pytest.mark.slow
@pytest.mark.parametrize("w", SIZES)
def test_the_best_of_very_many_graphs_is_safe(w: int) -> None:
    """2^20 starts of a session, each with fresh lists of all honest users.

    On every graph: no honest user has t corrupt choices, so no set of up to t - worst honest users
    is closed. Both attacks are run on one graph of 256, on the 16 graphs with a user of most
    corrupt choices, and on the 16 with a user whom fewest honest users chose.
    """
    corrupt, batch = w // 10, 64 if w < 1000 else 2
    graph = choose_degree(w, 0.1, 0.2, w // 2 + 1)

    def draw(number: int) -> NDArray[np.bool_]:
        generator = np.random.default_rng([w, number])
        return _lists(generator, w, corrupt, graph.degree, batch).reshape(batch, w - corrupt, w)

    def attacked(chosen: NDArray[np.bool_]) -> None:
        size, strays = _greedy(chosen, corrupt, graph)
        assert strays <= graph.strays
        assert size > graph.signers - corrupt - graph.strays or strays == 0
        assert _isolating(chosen, corrupt, graph) <= graph.strays

    most, fewest = [], []  # (score, number of the batch, place in it), a batch's best
    for number in range(MANY // batch):
        chosen = draw(number)
        counts = chosen[:, :, :corrupt].sum(2, dtype=np.uint8).max(1)
        at = int(counts.argmax())
        most.append((int(counts[at]), number, at))
        inward = chosen[:, :, corrupt:].view(np.uint8).sum(1, dtype=np.uint8).min(1)
        at = int(inward.argmin())
        fewest.append((int(inward[at]), number, at))
        if number % (256 // batch) == 0:
            attacked(chosen[0])
    worst = max(most)[0]
    assert graph.threshold > worst >= graph.degree * 0.1
    for _, number, place in sorted(most)[-16:] + sorted(fewest)[:16]:
        attacked(draw(number)[place])
