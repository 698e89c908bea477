"""Faults that audits and rehearsals play in a release."""

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class FaultInjection:
    """Faults that an audit or a rehearsal plays; its model is never suitable for release."""

    dropped: Collection[int] = ()  # users whose submission never arrives
    known_noise: Collection[int] = ()  # who adds noise that an attacker knows: none is in the sum

    @property
    def reason(self) -> str:
        """Reason why the model is unsuitable."""
        if self.known_noise:
            return f"an audit: {len(set(self.known_noise))} users or servers added no noise"
        return f"a rehearsal: {len(set(self.dropped))} users were made to drop out"

    def surviving(self, users: int, min_survivors: int) -> Tensor:
        """(users,) bool: who is left; raises ValueError for fewer than m_min, or no such user."""
        for name in ("known_noise", "dropped"):
            for user in getattr(self, name):
                if not 0 <= user < users:
                    raise ValueError(f"{name} must hold users in [0, {users}), got {user}")
        kept = torch.ones(users, dtype=torch.bool)
        kept[list(self.dropped)] = False
        if kept.sum() < min_survivors:
            raise ValueError(
                f"survivors must be >= min_survivors = {min_survivors}, got {int(kept.sum())}; "
                "nothing is released"
            )
        return kept
