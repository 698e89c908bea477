"""Decentralised learning without a server, private in every iteration."""

from train_distributed.research.admm.algorithm import AdmmSettings, State, iterations
from train_distributed.research.admm.graph import Graph, random_regular, ring, star
from train_distributed.research.admm.nodes import Nodes, gather
from train_distributed.research.admm.training import AdmmResult, account, accuracy, run

__all__ = [
    "AdmmResult",
    "AdmmSettings",
    "Graph",
    "Nodes",
    "State",
    "account",
    "accuracy",
    "gather",
    "iterations",
    "random_regular",
    "ring",
    "run",
    "star",
]
