"""Decentralised learning without a server, private in every iteration."""

from train_distributed.research.rivals.admm.algorithm import AdmmSettings, Network
from train_distributed.research.rivals.admm.graph import (
    Graph,
    Nodes,
    gather,
    random_regular,
    ring,
    star,
)

__all__ = [
    "AdmmSettings",
    "Graph",
    "Network",
    "Nodes",
    "gather",
    "random_regular",
    "ring",
    "star",
]
