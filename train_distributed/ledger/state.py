"""State of a ledger after all its lines: entries, limit, and what the entries cost together.

**Units.** A promise for a user covers each of its records, a promise for a group each smaller one.
A promise for a record says nothing about a user. Parts of one split have no row in common: one
replaced record is in one of them only, so the parts do not add up for it, but the costliest counts.
For users and groups, which may have rows in all parts, and for sets whose rows differ, they do.
Users are those of one division of the rows: promises for the users of two divisions cover nobody's
rows of both, only a user that holds all rows is covered by any.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from pretrain.cli.json_text import parsed
from train_distributed.ledger.entry import PARTS, Entry, Limit, read_fields
from train_distributed.privacy.composition import Cost, sum_up
from train_distributed.privacy.promise import Unit

RESERVE, SPEND, LIMIT, MERGED = "reserve", "spend", "limit", "merged"  # kinds of lines
GIVE_BACK = "give-back"  # of an entry for which no noise was drawn
TORN = "torn"  # a line that version 0.1 had not written to its end, and the entry read from it
GENESIS = hashlib.sha256(b"blind-averaging ledger, version 1").hexdigest()
ID_DIGITS = 16


@dataclass(frozen=True)
class LedgerLine:
    """One line, verified."""

    kind: str
    body: dict[str, Any]
    time: str
    hash: str
    stated: dict[str, Any]  # all of it

    @property
    def place(self) -> str:
        """Path of the ledger that the line was written to; empty where it does not say."""
        place = self.stated.get("place")
        return place if isinstance(place, str) else ""

    @property
    def id(self) -> str:
        """Id of the entry that it reserves."""
        return self.hash[:ID_DIGITS]

    @classmethod
    def read(cls, content: bytes, previous: str) -> "LedgerLine | None":
        """The line, if it follows from the one with this hash; None otherwise."""
        try:
            stated = parsed(content)
            follows = stated["previous"] == previous
            named = line_hash(b"", "", content).hex()
            line = cls(stated["kind"], stated["body"], stated["time"], named, stated)
        except (ValueError, TypeError, KeyError):
            return None
        return line if follows and isinstance(line.body, dict) else None


@dataclass(frozen=True)
class CountedEntry:
    """An entry, and whether its result was written."""

    id: str
    entry: Entry
    time: str  # of the reservation, UTC
    spent: bool = False  # whether its result was written; what it costs is the same
    torn: bool = False  # read from a line that was not written to its end
    origin: str = ""  # hash of the line that counted it first, in this ledger or another


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


@dataclass(frozen=True)
class LedgerState:
    """Entries, limit and head of a ledger."""

    records: tuple[CountedEntry, ...]  # without those that were given back
    limit: Limit | None
    raised: int  # how often a limit was raised
    torn: int  # lines that were not written to their end
    given_back: int  # entries that were reserved, and no noise drawn for them
    head: str  # hash of all of it
    length: int  # lines
    first: str = ""  # hash of its first line, which its copies have too
    place: str = ""  # where it lay when it was written last; empty: unknown
    merged: str = ""  # ledger that counts all of its entries since

    @classmethod
    def read(cls, lines: Sequence[LedgerLine], name: str) -> Self:
        """State after all lines of a ledger, which errors call `name`.

        Raises:
            ValueError: a line of another version, or one that says nonsense.
        """
        records: dict[str, CountedEntry] = {}
        limit, raised, torn, given_back, merged = None, 0, 0, 0, ""
        for line in lines:
            try:
                if line.kind in (RESERVE, TORN) and (stored := line.body.get("entry")) is not None:
                    entry = read_fields(Entry, stored)
                    origin = str(line.body.get("origin", line.hash))
                    kept = CountedEntry(
                        line.id, entry, line.time, torn=line.kind == TORN, origin=origin
                    )
                    records[line.id] = kept
                elif line.kind == SPEND:
                    id = line.body["id"]
                    records[id] = replace(records[id], spent=True)
                elif line.kind == GIVE_BACK:
                    del records[line.body["id"]]
                    given_back += 1
                elif line.kind == LIMIT:
                    limit = read_fields(Limit, line.body["limit"])
                    raised += line.body["raised"] is True
                elif line.kind == MERGED:
                    merged = str(line.body["into"])
                elif line.kind != TORN:
                    raise ValueError(f"kind must be one of this version's, got {line.kind!r}")
            except (KeyError, ValueError) as error:
                raise ValueError(f"ledger {name} cannot be read: {error}") from error
            torn += line.kind == TORN
        head = lines[-1].hash if lines else GENESIS
        place = next((line.place for line in reversed(lines) if line.place), "")
        known = tuple(records.values())
        first = lines[0].hash if lines else ""
        length = len(lines)
        return cls(known, limit, raised, torn, given_back, head, length, first, place, merged)

    @property
    def origins(self) -> set[str]:
        """Ids of entries by their first ledger, which copies of an entry share."""
        return {record.origin for record in self.records}

    def total(self, unit: Unit = "record") -> Total:
        """Cost of all entries, for one record or one user."""
        return Total.of((record.entry for record in self.records), unit)

    def record(self, id: str) -> CountedEntry:
        """The entry that was reserved under this id; raises ValueError where there is none."""
        for record in self.records:
            if record.id == id:
                return record
        raise ValueError(f"id must be of an entry in the ledger, got {id!r}")


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


def line_hash(_previous: bytes, _name: str, content: bytes) -> bytes:
    """Hash of a line; the text names the line before it."""
    return hashlib.sha256(content[:-1]).digest()
