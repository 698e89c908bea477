"""Cost of many entries together, for one record or one user.

**Units.** A promise for a user covers each of its records, a promise for a group each smaller one.
A promise for a record says nothing about a user. Parts of one split have no row in common: one
replaced record is in one of them only, so the parts do not add up for it, but the costliest counts.
For users and groups, which may have rows in all parts, and for sets whose rows differ, they do.
Users are those of one division of the rows: promises for the users of two divisions cover nobody's
rows of both, only a user that holds all rows is covered by any.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from train_distributed.ledger.entry import PARTS, Entry
from train_distributed.privacy.composition import Cost, sum_up
from train_distributed.privacy.promise import Unit


@dataclass(frozen=True)
class Total:
    """Cost of several entries, for one unit."""

    unit: Unit
    group_size: int  # of the smallest group that all of them promise something to
    entries: int
    cost: Cost
    uncovered: int = 0  # entries that promise nothing to this unit
    least_delta: float = 0.0  # for which it is worth asking

    @classmethod
    def of(cls, entries: Iterable[Entry], unit: Unit) -> "Total":
        """All of them, on whatever rows they were."""
        listed = list(entries)
        covering = [e for e in listed if unit == "record" or e.unit == "user"]
        if unit == "user":
            division = next((e.users for e in covering if e.users), "")
            covering = [e for e in covering if e.users in ("", division)]
        group = min((e.group_size for e in covering if e.unit == unit), default=1)
        if any(e.unit != unit for e in covering):
            group = 1  # a user may hold one record
        promised = [e.delta for e in covering if e.gaussian]
        others = [e.delta for e in covering if not e.gaussian]
        return cls(
            unit,
            group,
            len(listed),
            _together(covering, apart=unit == "record" and group == 1),
            len(listed) - len(covering),
            sum_up([max(promised, default=0.0), *others]),
        )

    def epsilon(self, delta: float | None = None) -> float:
        """ε at δ, infinite where an entry promises nothing to this unit.

        Args:
            delta: None: `least_delta`, the largest δ of the Gaussian promises and all other δ.
        """
        if not self.entries:
            return 0.0
        if self.uncovered:
            return math.inf
        if delta is None and not self.least_delta:
            return self.cost.epsilon  # pure promises alone
        if delta is None and self.least_delta >= 1:
            return math.inf
        return self.cost.at(self.least_delta if delta is None else delta)


def _together(entries: list[Entry], *, apart: bool) -> Cost:
    """Cost of all entries; with `apart`, of the costliest part of each known split."""
    sets: dict[tuple[str, str], dict[str, list[Cost]]] = {}
    everywhere: list[Cost] = []
    for entry in entries:
        if apart and entry.part and entry.part in PARTS and entry.split:
            parts = sets.setdefault((entry.data, entry.split), {})
            parts.setdefault(entry.part, []).append(entry.cost)
        else:
            everywhere.append(entry.cost)
    for parts in sets.values():
        worst = Cost()
        for costs in parts.values():
            worst = worst.worst(Cost.of(costs))
        everywhere.append(worst)
    return Cost.of(everywhere)
