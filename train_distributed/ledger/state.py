"""What the lines of a ledger come to: entries, limit, and what a killed writer has left."""

from dataclasses import dataclass, replace
from typing import Self

from train_distributed.ledger.entry import Entry, Limit, read_fields
from train_distributed.ledger.file import TORN, Chain, Line, torn_bodies
from train_distributed.ledger.total import Total
from train_distributed.privacy.promise import Unit

RESERVE, SPEND, LIMIT = "reserve", "spend", "limit"  # kinds of lines
ID_DIGITS = 16


@dataclass(frozen=True)
class Record:
    """An entry as it stands in a ledger."""

    id: str
    entry: Entry
    time: str  # of the reservation, UTC
    spent: bool = False  # whether its result was written; what it costs is the same
    torn: bool = False  # read from a line that was not written to its end


@dataclass(frozen=True)
class State:
    """What a ledger says, all of it."""

    records: tuple[Record, ...]
    limit: Limit | None
    raised: int  # how often a limit was raised
    torn: int  # lines that were not written to their end
    head: str  # hash of all of it
    length: int  # lines

    @classmethod
    def read(cls, chain: Chain, name: str) -> Self:
        """What the lines of a ledger say, one after another.

        Args:
            chain: its lines.
            name: of the ledger, for errors.

        Raises:
            ValueError: a line of another version, or one that says nonsense.
        """
        records: dict[str, Record] = {}
        limit, raised, torn = None, 0, 0
        for line in chain.lines:
            try:
                if line.kind in (RESERVE, TORN) and (stored := line.body.get("entry")) is not None:
                    id, entry = entry_id(line), Entry.from_json(stored)
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
        if chain.torn:
            torn += 1
            if (entry := torn_entry(chain.torn)) is not None:
                records[TORN] = Record(TORN, entry, "", torn=True)
        return cls(tuple(records.values()), limit, raised, torn, chain.head, len(chain.lines))

    def total(self, unit: Unit = "record") -> Total:
        """What all entries come to, for one record or one user."""
        return Total.of((record.entry for record in self.records), unit)

    def record(self, id: str) -> Record:
        """The entry that was reserved under this id.

        Raises:
            ValueError: there is none.
        """
        for record in self.records:
            if record.id == id:
                return record
        raise ValueError(f"id must be of an entry in the ledger, got {id!r}")


def torn_entry(torn: bytes) -> Entry | None:
    """The entry that a killed writer has written to its end, or nearly."""
    for body in torn_bodies(torn):
        try:
            if isinstance(body, dict) and body.get("entry") is not None:
                return Entry.from_json(body["entry"])
        except ValueError:
            continue
    return None


def entry_id(line: Line) -> str:
    """Under which the entry of a line is known."""
    return line.hash[:ID_DIGITS]
