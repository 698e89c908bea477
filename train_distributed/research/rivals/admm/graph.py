"""The nodes of a network with their rows, and the graphs that say which exchange messages."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from heads.rows import SLACK
from pretrain import check
from train_distributed.partition import Partition
from train_distributed.research.rivals.common import one_vs_rest


@dataclass(frozen=True, eq=False)
class Nodes:
    """Labelled rows per node for K binary problems on the same rows.

    Rows beyond a node's count are zero, which takes part in no gradient.

    Raises:
        ValueError: shapes that differ, a node without data, labels not ±1, rows not finite or
            longer than 1.
    """

    x: Tensor  # (P, B, d) float64, ‖row‖ <= 1
    y: Tensor  # (P, B, K) float64, ±1
    counts: Tensor  # (P,) int64, B_p

    def __post_init__(self) -> None:
        if self.x.shape[:2] != self.y.shape[:2] or self.counts.shape != self.x.shape[:1]:
            raise ValueError(
                f"x, y, counts must agree in nodes and rows, got {tuple(self.x.shape)}, "
                f"{tuple(self.y.shape)}, {tuple(self.counts.shape)}"
            )
        if self.counts.min() < 1:
            raise ValueError(f"node {int(self.counts.argmin())} must hold a row, got 0 rows")
        if not bool((self.y.abs() == 1).all()):
            raise ValueError(f"labels must be -1 or +1, got {float(self.y[self.y.abs() != 1][0])}")
        norm = float(self.x.norm(dim=-1).max())  # NaN fails the comparison
        if not norm <= 1 + SLACK:
            raise ValueError(f"rows must be finite with norm <= 1, got norm {norm}")

    @property
    def mask(self) -> Tensor:
        """(P, B) bool, true where a row is data."""
        return torch.arange(self.x.shape[1]) < self.counts[:, None]

    @property
    def sizes(self) -> Tensor:
        """(P, 1, 1) float64, B_p."""
        return self.counts.double()[:, None, None]

    @property
    def shape(self) -> tuple[int, int, int]:
        """(P, K, d), the shape of all nodes' classifiers."""
        return self.x.shape[0], self.y.shape[2], self.x.shape[2]


def gather(x: Tensor, labels: Tensor, partition: Partition, num_classes: int) -> Nodes:
    """One node per user of a partition.

    Args:
        x: (N, d) rows with norm at most 1.
        labels: (N,) int64 in [0, num_classes).
        partition: of the N rows.
        num_classes: K one-vs-rest problems; 2 gives a single problem, +1 for class 1.
    """
    positives = one_vs_rest(labels, num_classes)
    counts = partition.counts
    column = torch.arange(int(counts.max()))
    inside = column < counts[:, None]
    rows = partition.order[torch.where(inside, partition.offsets[:-1, None] + column, 0)]
    nodes_x = torch.where(inside[..., None], x.double()[rows], 0.0)
    return Nodes(nodes_x, positives[rows], counts)


@dataclass(frozen=True)
class Graph:
    """A connected undirected graph without loops.

    Raises:
        ValueError: an edge that is a loop, leaves the nodes or comes twice; a graph in pieces.
    """

    nodes: int  # P
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        check.at_least(2, nodes=self.nodes)
        seen = set()
        for a, b in self.edges:
            if a == b or not (0 <= a < self.nodes and 0 <= b < self.nodes):
                raise ValueError(f"edges must join two of {self.nodes} nodes, got ({a}, {b})")
            if (min(a, b), max(a, b)) in seen:
                raise ValueError(f"edges must be distinct, got ({a}, {b}) twice")
            seen.add((min(a, b), max(a, b)))
        pieces = _pieces(self.nodes, self.edges)
        if pieces > 1:
            raise ValueError(f"graph must be connected, got {pieces} pieces")

    @cached_property
    def degrees(self) -> Tensor:
        """(P,) float64, N_p."""
        return torch.bincount(torch.tensor(self.edges).flatten(), minlength=self.nodes).double()

    @cached_property
    def _adjacency(self) -> Tensor:
        ends = torch.tensor(self.edges).T
        both = torch.cat([ends, ends.flip(0)], dim=1)
        ones = torch.ones(both.shape[1], dtype=torch.float64)
        return torch.sparse_coo_tensor(
            both, ones, (self.nodes, self.nodes), check_invariants=True
        ).coalesce()

    def neighbour_sum(self, values: Tensor) -> Tensor:
        """(P, ...) float64 -> (P, ...), Σ over the neighbours of each node."""
        return torch.sparse.mm(self._adjacency, values.flatten(1)).view_as(values)


def ring(nodes: int) -> Graph:
    """Each node between two others.

    Examples:
        >>> ring(4).edges
        ((0, 1), (1, 2), (2, 3), (3, 0))
    """
    check.at_least(3, nodes=nodes)
    return Graph(nodes, tuple((i, (i + 1) % nodes) for i in range(nodes)))


def star(nodes: int) -> Graph:
    """Node 0 in the middle."""
    return Graph(nodes, tuple((0, i) for i in range(1, nodes)))


def random_regular(nodes: int, degree: int, generator: torch.Generator) -> Graph:
    """Every node has `degree` neighbours: a circulant graph after random edge switches.

    Raises:
        ValueError: no such graph exists (nodes * degree odd, degree not in [2, nodes)).
    """
    if not 2 <= degree < nodes or nodes * degree % 2:
        raise ValueError(
            f"degree must be in [2, {nodes}) with nodes * degree even, got {degree} for {nodes}"
        )
    edges = {
        (min(i, j), max(i, j))
        for i in range(nodes)
        for j in ((i + step) % nodes for step in _circulant_steps(nodes, degree))
    }
    switched = list(edges)
    while True:
        for _ in range(10):
            _switch(switched, generator)
        if _pieces(nodes, switched) == 1:
            return Graph(nodes, tuple(sorted(switched)))


def _circulant_steps(nodes: int, degree: int) -> list[int]:
    return [*range(1, degree // 2 + 1), *([nodes // 2] if degree % 2 else [])]


def _switch(edges: list[tuple[int, int]], generator: torch.Generator) -> None:
    """Tries a random exchange (a, b), (c, d) -> (a, c), (b, d) per edge; the graph stays simple."""
    present = set(edges)
    picks = torch.randint(len(edges), (len(edges), 2), generator=generator).tolist()
    flips = torch.randint(2, (len(edges),), generator=generator).tolist()
    for (i, j), flip in zip(picks, flips, strict=True):
        (a, b), (c, d) = edges[i], edges[j][::-1] if flip else edges[j]
        new = [(min(a, c), max(a, c)), (min(b, d), max(b, d))]
        if len({a, b, c, d}) == 4 and not present & set(new):
            present -= {edges[i], edges[j]}
            present |= set(new)
            edges[i], edges[j] = new


def _pieces(nodes: int, edges: Iterable[tuple[int, int]]) -> int:
    ends = np.array([*edges]).reshape(-1, 2).T
    adjacency = coo_array((np.ones(ends.shape[1]), (ends[0], ends[1])), shape=(nodes, nodes))
    return int(connected_components(adjacency, directed=False)[0])
