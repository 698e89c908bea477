"""Decentralised learning without a server, private in every iteration."""

from train_distributed.research.admm.algorithm import AdmmSettings, Network
from train_distributed.research.admm.graph import Graph, random_regular, ring, star
from train_distributed.research.admm.nodes import Nodes, gather

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
