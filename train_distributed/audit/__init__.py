"""Attacks on whole releases: what they prove must stay below what was promised."""

from train_distributed.audit.attack import Finding, attack, judge
from train_distributed.audit.federation import Federation
from train_distributed.audit.target import Claim, Target

__all__ = ["Claim", "Federation", "Finding", "Target", "attack", "judge"]
