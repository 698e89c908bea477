"""What else has been computed from the same records, as a ledger says."""

import math
from collections.abc import Mapping
from typing import Any

from train_distributed.ledger.ledger import NONE
from train_distributed.ledger.state import Record, State
from train_distributed.released.card.content import (
    Block,
    Section,
    Table,
    Warned,
    Words,
    counted,
    rounded_up,
)


def ledger_section(report: Mapping[str, Any], state: State | None) -> Section:
    """All entries and what they come to, or what the release itself has noted.

    Args:
        report: of the release.
        state: of the ledger that was handed in; None: none was.
    """
    title = "What else was computed from these records"
    blocks: list[Block] = [*_noted(report.get("ledger"))]
    if state is None:
        words = (
            "Every further release or evaluation of the same records adds to what is known of "
            "them. No ledger was handed in for this card; the command “ledger show” tells what "
            "all of them come to."
        )
        return Section(title, (*blocks, Words(words)))
    blocks += [
        Words(
            f"The ledger of these records holds {counted(len(state.records), 'entry', 'entries')}"
            f", {counted(state.length, 'line')} with the hash {state.head}."
        )
    ]
    if state.torn:
        lines = counted(state.torn, "line")
        blocks.append(Warned(f"{lines} were not written to their end; they count as spent."))
    if state.records:
        blocks += [_entries(state.records), Words(_together(state))]
    if (limit := state.limit) is not None:
        raised = f" It was raised {counted(state.raised, 'time')}." if state.raised else ""
        blocks.append(
            Words(
                f"Its limit: ε = {limit.epsilon:g} at δ = {limit.delta:g} for one "
                f"{limit.unit}.{raised}"
            )
        )
    return Section(title, tuple(blocks))


def _noted(noted: Any) -> list[Block]:
    """What a release says of its own entry."""
    if noted == NONE:
        return [Warned("No ledger was kept when this model was made: nobody counted it.")]
    if not isinstance(noted, Mapping):
        return []
    return [
        Words(
            f"This release is entry {noted['entry']} of the ledger {noted['file']}. All entries up "
            f"to it came to ε = {rounded_up(float(noted['epsilon_total']))} at "
            f"δ = {float(noted['delta_total']):g} for one {noted['unit']}."
        )
    ]


def _entries(records: tuple[Record, ...]) -> Table:
    head = ("when, UTC", "what", "method", "ε", "δ", "unit", "result")
    return Table("Entries", head, tuple(map(_row, records)), numeric=False)


def _row(record: Record) -> tuple[str, ...]:
    entry = record.entry
    unit = entry.unit if entry.group_size == 1 else f"{entry.group_size} {entry.unit}s"
    result = entry.result or ("written" if record.spent else "reserved, no result known")
    return (
        record.time[:16].replace("T", " "),
        entry.kind,
        entry.method if entry.noise == "discrete" else f"{entry.method} ({entry.noise} noise)",
        rounded_up(entry.epsilon, 6),
        f"{entry.delta:g}",
        unit,
        result,
    )


def _together(state: State) -> str:
    parts = []
    for unit in ("record", "user"):
        total = state.total(unit)
        epsilon = total.epsilon()
        if math.isfinite(epsilon):
            at = f"δ = {rounded_up(total.least_delta)}" if total.least_delta else "δ = 0"
            parts.append(f"ε = {rounded_up(epsilon)} at {at} for one {unit}")
    if not parts:
        return "Together they promise nothing: one of them has no promise."
    return (
        f"Together they come to {', '.join(parts)}. Reserved and spent count alike; entries on "
        "parts of a set that have no record in common do not add up for one record."
    )
