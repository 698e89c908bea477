"""State of a ledger after all its lines: entries and limit."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from train_distributed.ledger.entry import Entry, Limit, read_fields
from train_distributed.ledger.line import GENESIS, Line
from train_distributed.ledger.text_file import TORN
from train_distributed.ledger.total import Total
from train_distributed.privacy.promise import Unit

RESERVE, SPEND, LIMIT = "reserve", "spend", "limit"  # kinds of lines
ID_DIGITS = 16


@dataclass(frozen=True)
class Record:
    """An entry, and whether its result was written."""

    id: str
    entry: Entry
    time: str  # of the reservation, UTC
    spent: bool = False  # whether its result was written; what it costs is the same
    torn: bool = False  # read from a line that was not written to its end


@dataclass(frozen=True)
class State:
    """Entries, limit and head of a ledger."""

    records: tuple[Record, ...]
    limit: Limit | None
    raised: int  # how often a limit was raised
    torn: int  # lines that were not written to their end
    head: str  # hash of all of it
    length: int  # lines

    @classmethod
    def read(cls, lines: Sequence[Line], name: str) -> Self:
        """State after all lines of a ledger, which errors call `name`.

        Raises:
            ValueError: a line of another version, or one that says nonsense.
        """
        records: dict[str, Record] = {}
        limit, raised, torn = None, 0, 0
        for line in lines:
            try:
                if line.kind in (RESERVE, TORN) and (stored := line.body.get("entry")) is not None:
                    id, entry = entry_id(line), read_fields(Entry, stored)
                    records[id] = Record(id, entry, line.time, torn=line.kind == TORN)
                elif line.kind == SPEND:
                    id = line.body["id"]
                    records[id] = replace(records[id], spent=True)
                elif line.kind == LIMIT:
                    limit = read_fields(Limit, line.body["limit"])
                    raised += line.body["raised"] is True
                elif line.kind != TORN:
                    raise ValueError(f"kind must be one of this version's, got {line.kind!r}")
            except (KeyError, ValueError) as error:
                raise ValueError(f"ledger {name} cannot be read: {error}") from error
            torn += line.kind == TORN
        head = lines[-1].hash if lines else GENESIS
        return cls(tuple(records.values()), limit, raised, torn, head, len(lines))

    def total(self, unit: Unit = "record") -> Total:
        """Cost of all entries, for one record or one user."""
        return Total.of((record.entry for record in self.records), unit)

    def record(self, id: str) -> Record:
        """The entry that was reserved under this id; raises ValueError where there is none."""
        for record in self.records:
            if record.id == id:
                return record
        raise ValueError(f"id must be of an entry in the ledger, got {id!r}")


def entry_id(line: Line) -> str:
    """Id of the entry of a line."""
    return line.hash[:ID_DIGITS]
