"""What else has been computed from the same records, as a ledger says."""

import math

from train_distributed.one_shot.released.card.content import (
    Block,
    Section,
    Table,
    Warned,
    Words,
    counted,
    rounded_up,
)
from train_distributed.privacy.ledger import Record, State


def ledger_section(state: State | None) -> Section:
    """All entries and what they come to, or that nobody has handed in a ledger."""
    title = "What else was computed from these records"
    if state is None:
        words = (
            "No ledger was handed in for this card. Every further release or evaluation of the "
            "same records adds to what is known of them; the command “ledger show” tells what it "
            "comes to."
        )
        return Section(title, (Words(words),))
    blocks: list[Block] = [
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


def _entries(records: tuple[Record, ...]) -> Table:
    head = ("when (UTC)", "what", "method", "noise", "ε", "δ", "unit", "result")
    return Table("Entries", head, tuple(map(_row, records)), numeric=False)


def _row(record: Record) -> tuple[str, ...]:
    entry = record.entry
    unit = entry.unit if entry.group_size == 1 else f"{entry.group_size} {entry.unit}s"
    result = entry.result or ("written" if record.spent else "reserved, no result known")
    return (
        record.time,
        entry.kind,
        entry.method,
        entry.noise,
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
            parts.append(f"for one {unit} ε = {rounded_up(epsilon)} at {at}")
    if not parts:
        return "Together they promise nothing: one of them has no promise."
    return f"Together they come to {', '.join(parts)}; reserved and spent count alike."
