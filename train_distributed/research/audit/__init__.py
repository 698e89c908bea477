"""Attacks on whole releases: what they prove must stay below what was promised."""

from train_distributed.research.audit.attack import Finding, attack, judge
from train_distributed.research.audit.target import Claim, Target
from train_distributed.research.audit.worst_case import WorstCase

__all__ = ["Claim", "Finding", "Target", "WorstCase", "attack", "judge"]
