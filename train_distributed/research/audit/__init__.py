"""Attacks on whole releases: what they prove must stay below what was promised."""

from train_distributed.research.audit.attack import Finding, attack, judge
from train_distributed.research.audit.target import Claim, Target
from train_distributed.research.audit.worst_case import Federation

__all__ = ["Claim", "Federation", "Finding", "Target", "attack", "judge"]
