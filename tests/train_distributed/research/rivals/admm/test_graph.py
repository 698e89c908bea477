"""Who talks to whom in decentralised learning."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train_distributed.research.rivals.admm.graph import Graph, random_regular, ring, star


@settings(derandomize=True, max_examples=40, deadline=None)
@given(nodes=st.integers(4, 20), degree=st.integers(2, 6), seed=st.integers(0, 1000))
def test_random_regular_graphs_are_regular(nodes, degree, seed):
    if degree >= nodes or nodes * degree % 2:
        with pytest.raises(ValueError, match=r"degree must be in \[2"):
            random_regular(nodes, degree, torch.Generator().manual_seed(seed))
        return
    graph = random_regular(nodes, degree, torch.Generator().manual_seed(seed))
    assert (graph.degrees == degree).all()


def test_graph_shapes():
    assert ring(3).degrees.tolist() == [2, 2, 2]
    assert star(4).degrees.tolist() == [3, 1, 1, 1]
    assert Graph(3, ((0, 1), (1, 2))).degrees.tolist() == [1, 2, 1]
    values = torch.randn(4, 2, 3, dtype=torch.float64)
    assert torch.allclose(star(4).neighbour_sum(values)[0], values[1:].sum(0))
    assert torch.equal(star(4).neighbour_sum(values)[3], values[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Graph(4, ((0, 1), (2, 3))), "graph must be connected"),
        (lambda: Graph(3, ((0, 1),)), "graph must be connected"),
        (lambda: Graph(1, ()), "nodes must be >= 2"),
        (lambda: Graph(2, ((1, 1),)), r"edges must join two of 2 nodes"),
        (lambda: Graph(2, ((0, 1), (1, 0))), r"edges must be distinct"),
        (lambda: Graph(2, ()), "graph must be connected"),
        (lambda: ring(2), "nodes must be >= 3"),
    ],
)
def test_bad_graphs_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
