"""Scores as probabilities, and what those are worth."""

import math

import torch
from torch import Tensor

from train_distributed.one_shot.registry import METHODS

UNKNOWN = "softmax of the scores; whether they are log-probabilities is unknown, not calibrated"


def reading(method: str | None) -> str:
    """How the probabilities of a method's model are made, and whether they are calibrated."""
    entry = METHODS.get(method or "")
    return (entry and entry.probabilities) or UNKNOWN


def probabilities(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(n, K) softmax of (n, K) float64 scores / temperature; finite whatever finite scores."""
    largest = scores.amax(1, keepdim=True)
    return torch.softmax((scores - largest) / temperature, 1)


def log_odds(scores: Tensor, temperature: float = 1.0) -> Tensor:
    """(n, K) float64 log p/(1 − p), in the order of p also where p rounds to 0 or 1."""
    largest, top = scores.max(1, keepdim=True)
    scaled = (scores - largest) / temperature
    shares = scaled.exp()
    others = (shares.sum(1, keepdim=True) - shares).log()  # but for the top: there nothing cancels
    without = scaled.scatter(1, top, -math.inf).logsumexp(1, keepdim=True)
    return scaled - others.scatter(1, top, without)
