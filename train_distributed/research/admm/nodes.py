"""The rows that the nodes of a network hold, as one rectangle."""

from dataclasses import dataclass

import torch
from torch import Tensor

from heads.rows import SLACK
from train_distributed.partition import Partition
from train_distributed.research.rows import one_vs_rest


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
