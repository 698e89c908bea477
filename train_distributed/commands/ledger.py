"""`ledger show|reserve|spend|limit`: what is spent on private rows, and what may be."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pretrain.cli.json_text import parsed
from train_distributed.privacy.promise import Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.ledger.entry import Limit
    from train_distributed.ledger.ledger import Ledger
    from train_distributed.ledger.state import Record, State

REPORTS = ("report.json", "evaluation.json")  # what results are told in
KindName = Literal["release", "evaluation", "re-release"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Which ledger."""

    embeddings: Path | None = None
    """Embedding set whose ledger it is: NAME.ledger beside the set."""
    ledger: Path | None = None
    """The file itself, instead."""

    def open(self) -> "Ledger":
        """The ledger, its chain verified.

        Raises:
            ValueError: not exactly one is given, or the chain is broken.
        """
        from train_distributed.ledger.ledger import Ledger

        if (self.embeddings is None) == (self.ledger is None):
            given = "neither" if self.embeddings is None else "both"
            raise ValueError(f"exactly one of embeddings and ledger must be given, got {given}")
        if self.ledger is not None:
            return Ledger.open(self.ledger)
        assert self.embeddings is not None
        return Ledger.beside(self.embeddings)


@dataclass(frozen=True, kw_only=True)
class Show(Place):
    """Say what was spent, entry by entry and together, and what is left.

    Example:
    blind-averaging ledger show --embeddings mine --reports model
    """

    delta: float | None = None
    """For which epsilon is told; the limit's, or the largest promised one, if left out."""
    reports: tuple[Path, ...] = ()
    """Directories of results, or the JSON files in them that name their ledger: their entries must
    still be in it."""

    def run(self) -> None:
        """Prints the entries, totals, limit and head.

        Raises:
            ValueError: the chain is broken, or a report has seen lines that are missing.
        """
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
        ledger = self.open()
        if not ledger.path.exists():
            raise ValueError(f"ledger must exist, got {ledger.path}")
        for report in self.reports:
            ledger.check_against(_entry_of(report))
        for line in lines_of(ledger.state(), self.delta):
            print(line)
        if self.reports:
            print(f"{len(self.reports)} report(s) agree with it")


@dataclass(frozen=True, kw_only=True)
class Reserve(Place):
    """Count a sum that another program will make, before it draws any noise.

    With `sigma` and `sensitivity` it adds up as Gaussian noise does; without, by epsilon and delta.

    Example:
    blind-averaging ledger reserve --embeddings mine --epsilon 1 --delta 1e-5
    """

    epsilon: float
    """As promised, at delta."""
    delta: float
    """As promised; 0 where epsilon is pure."""
    sigma: float | None = None
    """Standard deviation of the noise that is certain to be there."""
    sensitivity: float | None = None
    """L2, for the stated unit and group."""
    compositions: int = 1
    """Releases of that sensitivity and noise in it."""
    unit: Unit = "record"
    """What the promise is for."""
    group_size: int = 1
    """How many of them together."""
    kind: KindName = "release"
    """What the sum is for."""
    method: str = "other"
    """What makes it."""
    data: str | None = None
    """Name of the rows where no embedding set is given."""
    part: Literal["train", "test", "evaluation"] | None = None
    """Rows of this split of the set, which no other split holds; all rows if left out."""
    result: str = ""
    """Name of what will be written."""

    def run(self) -> None:
        """Prints the id for `spend`.

        Raises:
            ValueError: a setting out of range, a limit would be passed, or the chain is broken.
        """
        from train_distributed.ledger.entry import Entry

        entry = Entry(
            **self._rows(),  # pyright: ignore[reportArgumentType]
            kind=self.kind,
            method=self.method,
            noise="not stated",
            unit=self.unit,
            group_size=self.group_size,
            epsilon=self.epsilon,
            delta=self.delta,
            sigma=self.sigma,
            sensitivity=self.sensitivity,
            compositions=self.compositions,
            result=self.result,
        )
        print(self.open().reserve(entry))

    def _rows(self) -> dict[str, str]:
        if (self.embeddings is None) == (self.data is None):
            given = "neither" if self.embeddings is None else "both"
            raise ValueError(f"exactly one of embeddings and data must be given, got {given}")
        if self.embeddings is None:
            assert self.data is not None
            return {"data": self.data}
        from embed.store import EmbeddingSet
        from train_distributed.ledger.fields import row_fields

        return row_fields(EmbeddingSet.open(self.embeddings), self.part or "")


@dataclass(frozen=True, kw_only=True)
class Spend(Place):
    """Note that the result of a reserved sum was written; it costs what it cost before."""

    id: str
    """As `reserve` printed it."""

    def run(self) -> None:
        """Appends the note.

        Raises:
            ValueError: nothing is reserved under this id, it is spent, or the chain is broken.
        """
        self.open().spend(self.id)


@dataclass(frozen=True, kw_only=True)
class SetLimit(Place):
    """Set what all sums together may come to: whoever would pass it is refused.

    Example:
    blind-averaging ledger limit --embeddings mine --epsilon 3 --delta 1e-5
    """

    epsilon: float
    """Of all of them together; inf: no limit."""
    delta: float
    """At which epsilon is told."""
    unit: Unit = "record"
    """Whom it protects."""
    raise_limit: bool = False
    """Allow more than the limit before; the ledger keeps that this was done."""

    def run(self) -> None:
        """Appends the limit.

        Raises:
            ValueError: out of range, or it allows more without `raise_limit`.
        """
        from train_distributed.ledger.entry import Limit

        limit = Limit(epsilon=self.epsilon, delta=self.delta, unit=self.unit)
        ledger = self.open()
        ledger.limit(limit, raised=self.raise_limit)
        print(_limit_line(ledger.state(), limit))


def lines_of(state: "State", delta: float | None) -> Iterator[str]:
    """A ledger for people: its entries, totals, limit, head."""
    for record in state.records:
        yield _entry_line(record)
    for unit in ("record", "user"):
        total = state.total(unit)
        asked = delta or (state.limit.delta if state.limit else total.least_delta)
        if total.uncovered:
            yield f"one user: nothing promised by {total.uncovered} of {total.entries} entries"
        elif total.entries:
            who = f"one {unit}" if total.group_size == 1 else f"{total.group_size} {unit}s"
            epsilon = total.epsilon(asked or None)
            yield f"{who}: epsilon {epsilon:.6g} at delta {asked:g}, {total.entries} entries"
    if state.torn:
        yield f"torn lines: {state.torn}; what can be read of them is counted"
    if state.limit is not None:
        yield _limit_line(state, state.limit)
    yield f"head {state.head}, {state.length} lines"


def _entry_line(record: "Record") -> str:
    entry = record.entry
    noise = f"epsilon {entry.epsilon:.6g}, delta {entry.delta:g}"
    if entry.gaussian:
        noise += f", sigma {entry.sigma:.6g}, sensitivity {entry.sensitivity:.6g}"
        noise += f", {entry.compositions} compositions" if entry.compositions > 1 else ""
    what = f"{entry.group_size} {entry.unit}s" if entry.group_size > 1 else f"one {entry.unit}"
    simulated = ", a simulation" if entry.noise == "float" else ""
    done = "torn" if record.torn else "spent" if record.spent else "reserved"
    rows = f"{entry.data[:12]} {entry.part}".strip()
    words = (record.id, record.time, done, entry.kind, entry.method, rows, what)
    result = f" -> {entry.result}" if entry.result else ""
    return _printable(" ".join(filter(None, words)) + f": {noise}{simulated}{result}")


def _limit_line(state: "State", limit: "Limit") -> str:
    total = state.total(limit.unit).epsilon(limit.delta)
    raised = f", raised {state.raised} time(s)" if state.raised else ""
    return (
        f"limit: epsilon {limit.epsilon:g} at delta {limit.delta:g} for one {limit.unit}, "
        f"{total:.6g} of it spent{raised}"
    )


def _printable(text: str) -> str:
    return text.encode("unicode_escape").decode()


def _entry_of(path: Path) -> dict[str, Any]:
    """What a report says of its ledger."""
    file = path
    if path.is_dir():
        file = next((path / name for name in REPORTS if (path / name).exists()), path / REPORTS[0])
    try:
        told = parsed(file.read_bytes())["ledger"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"reports must be of results with a ledger, got {file}: {error}"
        ) from error
    if not isinstance(told, dict):
        raise ValueError(f"reports must be of results with a ledger, got {told!r} in {file}")
    return told
