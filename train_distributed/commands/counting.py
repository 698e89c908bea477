"""Privacy spent: `account` computes it, `ledger show|reserve|spend|limit|merge` keeps it."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from pretrain import check
from pretrain.cli.json_text import parsed
from pretrain.public import function
from train_distributed.privacy.promise import Unit

if TYPE_CHECKING:  # what works is imported by the command that runs
    from train_distributed.ledger.entry import Limit
    from train_distributed.ledger.ledger import Ledger
    from train_distributed.ledger.state import CountedEntry, LedgerState, Total


@dataclass(frozen=True)
class Account:
    """Compute epsilon, delta or the noise multiplier of Gaussian noise from the other two."""

    epsilon: float | None = None
    """ε for one replaced record."""
    delta: float | None = None
    """δ in (0, 1)."""
    noise_multiplier: float | None = None
    """Standard deviation of the noise that is certain, divided by the sensitivity of one
    composition: of all honest users together, or of one honest server."""
    compositions: int = 1
    """Number of compositions: 1 for softmax and statistics, K for one-vs-rest heads."""

    users: int | None = None
    """Number of users; also prints whom the promise needs, and the noise of each and of the sum."""
    noise_by: Literal["users", "servers"] = "users"
    """Who adds the noise, with --users: every user a share, or each of two servers all of it."""
    honest_fraction: float | None = None
    """Share of honest users, where users add the noise (default: 0.5, for a single user 1)."""

    def run(self) -> dict[str, float]:
        """Prints the three numbers, one of them computed; with `users`, the noise of each party.

        Raises:
            ValueError: not exactly two are given, or one is out of range.
        """
        from train_distributed import accounting

        given = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "noise_multiplier": self.noise_multiplier,
        }
        missing = [name for name, value in given.items() if value is None]
        if len(missing) != 1:
            raise ValueError(
                "exactly two of epsilon, delta, noise_multiplier must be given, "
                f"got {3 - len(missing)}"
            )
        known = {name: float(value) for name, value in given.items() if value is not None}
        solved = getattr(accounting, missing[0])(**known, compositions=self.compositions)
        numbers = known | {missing[0]: float(solved)}
        parties = self._parties(numbers)  # refused before anything is printed
        for name in given:
            print(f"{name:17} {numbers[name]:.10g}")
        print(f"{'compositions':17} {self.compositions}")
        for line in parties:
            print(line)
        return numbers

    def _parties(self, numbers: dict[str, float]) -> list[str]:
        """Lines on whom the promise needs, and the noise of each and of the sum."""
        if self.users is None:
            check.not_set("without users", honest_fraction=self.honest_fraction)
            return []
        from train_distributed.privacy.promise import Privacy

        check.at_least(1, users=self.users)
        promise = Privacy(
            numbers["epsilon"], numbers["delta"], self.honest_fraction, noise_by=self.noise_by
        )
        promise.validate()
        honest = promise.certain_shares(self.users)
        each = numbers["noise_multiplier"] / math.sqrt(honest)
        adders = promise.noise_shares(self.users)
        return [
            f"{'holds if':17} {honest} of {adders} {self.noise_by} are honest",
            f"{'noise of each':17} {each:.10g} times the sensitivity",
            f"{'noise in the sum':17} {each * math.sqrt(adders):.10g} times the sensitivity",
        ]


account = function("account", Account)


REPORTS = ("report.json", "evaluation.json")  # of results that name a ledger
KindName = Literal["release", "evaluation", "re-release"]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Ledger by its file or by its embedding set."""

    embeddings: Path | None = None
    """Embedding set whose ledger to use: NAME.ledger next to the set."""
    ledger: Path | None = None
    """Ledger file, instead of --embeddings (`reserve`: or beside it, to count that set there)."""

    def open(self) -> "Ledger":
        """The ledger, its chain verified.

        Raises:
            ValueError: not exactly one is given, or the chain is broken.
        """
        from train_distributed.ledger.ledger import Ledger

        check.exactly_one(embeddings=self.embeddings, ledger=self.ledger)
        if self.ledger is not None:
            return Ledger.open(self.ledger)
        assert self.embeddings is not None
        beside = Ledger.beside(self.embeddings)
        if not (beside.path.exists() or (self.embeddings / "meta.json").is_file()):
            raise ValueError(
                f"embeddings must be an embedding set, or have been one with a ledger, got "
                f"{self.embeddings}"
            )
        return beside


@dataclass(frozen=True, kw_only=True)
class Show(Place):
    """Show what was spent, entry by entry and in total, and the limit.

    Example:
    blind-averaging ledger show --embeddings mine --reports model
    """

    delta: float | None = None
    """Delta at which epsilon is shown; the limit's, or the largest promised one, if left out."""
    reports: tuple[Path, ...] = ()
    """Directories of results, or the JSON files in them that name their ledger: their entries must
    still be in it."""
    json: bool = False
    """Print all of it as JSON: every line with its salt and hash, so keep that as private as the
    ledger. Without it: one line per entry, for people."""

    def run(self) -> None:
        """Prints the entries, totals, limit and head.

        Raises:
            ValueError: the chain is broken, or a report has seen lines that are missing.
        """
        check.within("(0, 1)", **check.drop_none(delta=self.delta))
        ledger = self.open()
        if not ledger.path.exists():
            raise ValueError(f"ledger must exist, got {ledger.path}")
        for report in self.reports:
            ledger.check_against(_entry_of(report))
        if self.json:
            print(json.dumps(document_of(ledger, self.delta), indent=1, allow_nan=False))
            return
        state = ledger.state()
        for line in lines_of(state, self.delta):
            print(line)
        if place := ledger.counted_in(state):
            print(f"a copy: what counts is {place}, which may hold more")
        if self.reports:
            print(f"{len(self.reports)} report(s) agree with it")


ledger_show = function("ledger_show", Show)


@dataclass(frozen=True, kw_only=True)
class Reserve(Place):
    """Reserve epsilon for a sum of another program, before that draws any noise.

    With --sigma and --sensitivity it composes as Gaussian noise; without, by epsilon and delta.

    Example:
    blind-averaging ledger reserve --embeddings mine --epsilon 1 --delta 1e-5
    """

    epsilon: float
    """Promised epsilon at --delta."""
    delta: float
    """Promised delta; 0 for pure epsilon."""
    sigma: float | None = None
    """Standard deviation of the noise that is certain: of all honest users, or of one server."""
    sensitivity: float | None = None
    """L2 sensitivity for --unit and --group-size."""
    noise_by: Literal["users", "servers", "not stated"] = "not stated"
    """Who adds the noise: every user a share, or each server all of it."""
    compositions: int = 1
    """Number of releases of that sensitivity and noise."""
    unit: Unit = "record"
    """Unit that the promise protects."""
    group_size: int = 1
    """Number of units that the promise protects together."""
    kind: KindName = "release"
    """Purpose of the sum."""
    method: str = "other"
    """Method that makes it, by any name."""
    data: str | None = None
    """Name of the rows, without --embeddings."""
    part: Literal["train", "test", "evaluation"] | None = None
    """Split of the set that the sum reads (default: all rows)."""
    result: str = ""
    """Name of the result."""

    def run(self) -> str:
        """Prints and returns the id for `spend`.

        Raises:
            ValueError: a setting out of range, a limit would be passed, or the chain is broken.
        """
        from train_distributed.ledger.entry import Entry

        given = {each.name: getattr(self, each.name) for each in fields(Reserve)}
        for name in ("embeddings", "ledger", "data", "part"):
            del given[name]
        entry = Entry(**given, **self._rows(), noise="not stated")
        kept = self.open().reserve(entry)
        print(kept)
        return kept

    def open(self) -> "Ledger":
        """See `Place.open`; given both, the file counts the rows of the set."""
        if self.embeddings is None or self.ledger is None:
            return super().open()
        from train_distributed.ledger.ledger import Ledger

        return Ledger.open(self.ledger, self.embeddings.resolve().parent)

    def _rows(self) -> dict[str, Any]:
        check.exactly_one(embeddings=self.embeddings, data=self.data)
        if self.embeddings is None:
            assert self.data is not None
            return {"data": self.data}
        from embed.store import EmbeddingSet
        from train_distributed.ledger.entry import row_fields

        return dict(row_fields(EmbeddingSet.open(self.embeddings), self.part or ""))


ledger_reserve = function("ledger_reserve", Reserve)


@dataclass(frozen=True, kw_only=True)
class Spend(Place):
    """Note that the result of a reserved sum was written; it costs what it cost before."""

    id: str
    """The id that `reserve` printed."""

    def run(self) -> None:
        """Appends the note.

        Raises:
            ValueError: nothing is reserved under this id, it is spent, or the chain is broken.
        """
        self.open().spend(self.id)


ledger_spend = function("ledger_spend", Spend)


@dataclass(frozen=True, kw_only=True)
class SetLimit(Place):
    """Limit the epsilon of all sums together; sums that would exceed it are refused.

    Example:
    blind-averaging ledger limit --embeddings mine --epsilon 3 --delta 1e-5
    """

    epsilon: float
    """Largest epsilon of all sums together; inf: no limit."""
    delta: float
    """Delta at which epsilon is computed."""
    unit: Unit = "record"
    """Unit that the limit protects."""
    raise_limit: bool = False
    """Allow more than the limit before; the ledger records it."""

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


ledger_limit = function("ledger_limit", SetLimit)


@dataclass(frozen=True, kw_only=True)
class Merge(Place):
    """Count in one ledger what another one counts as well, such as a copy that was written to.

    Example:
    blind-averaging ledger merge --embeddings mine --other copy/mine.ledger
    """

    other: Path
    """The other ledger. Afterwards it counts no more, and names the first one."""

    def run(self) -> None:
        """Appends the entries that are missing.

        Raises:
            ValueError: a chain is broken, there is no other ledger, or one is a copy.
        """
        from train_distributed.ledger.ledger import Ledger

        ledger = self.open()
        added = ledger.merge(Ledger(self.other))
        print(f"{added} entries of {self.other} are counted in {ledger.path} from now on")


ledger_merge = function("ledger_merge", Merge)


def lines_of(state: "LedgerState", delta: float | None) -> Iterator[str]:
    """A ledger for people: its entries, totals, limit, head."""
    for record in state.records:
        yield _entry_line(record)
    for unit in ("record", "user"):
        total, asked = _total(state, unit, delta)
        if total.uncovered:
            yield f"one user: nothing promised by {total.uncovered} of {total.entries} entries"
        elif total.entries:
            who = f"one {unit}" if total.group_size == 1 else f"{total.group_size} {unit}s"
            epsilon = total.epsilon(asked or None)
            yield f"{who}: epsilon {epsilon:.6g} at delta {asked:g}, {total.entries} entries"
    if state.given_back:
        yield f"given back: {state.given_back}, for which no noise was drawn"
    if state.torn:
        yield f"torn lines: {state.torn}; what can be read of them is counted"
    if state.limit is not None:
        yield _limit_line(state, state.limit)
    yield f"head {state.head}, {state.length} lines"


def document_of(ledger: "Ledger", delta: float | None) -> dict[str, Any]:
    """All of a ledger, JSON-ready: its lines with their hashes, and what they come to."""
    from train_distributed.ledger.entry import to_words

    state, totals = ledger.state(), dict[str, Any]()
    for unit in get_args(Unit):
        total, asked = _total(state, unit, delta)
        epsilon = total.epsilon(asked or None)
        totals[unit] = {
            "epsilon": epsilon if epsilon < math.inf else "inf",
            "delta": asked,
            "group_size": total.group_size,
            "entries": total.entries,
            "uncovered": total.uncovered,
        }
    return {
        "file": ledger.path.name,
        "copy_of": ledger.counted_in(state) or None,
        "lines": [line.stated | {"hash": line.hash} for line in ledger.lines()],
        "totals": totals,
        "limit": None if state.limit is None else to_words(state.limit),
        "raised": state.raised,
        "torn": state.torn,
        "head": state.head,
        "length": state.length,
    }


def _total(state: "LedgerState", unit: Unit, delta: float | None) -> "tuple[Total, float]":
    """Cost of all entries, and the delta that epsilon is stated at."""
    total = state.total(unit)
    return total, delta or (state.limit.delta if state.limit else total.least_delta)


def _entry_line(record: "CountedEntry") -> str:
    entry = record.entry
    noise = f"epsilon {entry.epsilon:.6g}, delta {entry.delta:g}"
    if entry.gaussian:
        noise += f", sigma {entry.sigma:.6g}, sensitivity {entry.sensitivity:.6g}"
        noise += f", {entry.compositions} compositions" if entry.compositions > 1 else ""
    noise += "" if entry.noise_by == "not stated" else f", noise by {entry.noise_by}"
    what = f"{entry.group_size} {entry.unit}s" if entry.group_size > 1 else f"one {entry.unit}"
    simulated = ", a simulation" if entry.noise == "float" else ""
    done = "torn" if record.torn else "spent" if record.spent else "reserved"
    rows = f"{entry.data[:12]} {entry.part}".strip()
    words = (record.id, record.time, done, entry.kind, entry.method, rows, what)
    result = f" -> {entry.result}" if entry.result else ""
    text = " ".join(filter(None, words)) + f": {noise}{simulated}{result}"
    return text.encode("unicode_escape").decode()  # names may hold anything


def _limit_line(state: "LedgerState", limit: "Limit") -> str:
    total = state.total(limit.unit).epsilon(limit.delta)
    raised = f", raised {state.raised} time(s)" if state.raised else ""
    return (
        f"limit: epsilon {limit.epsilon:g} at delta {limit.delta:g} for one {limit.unit}, "
        f"{total:.6g} of it spent{raised}"
    )


def _entry_of(path: Path) -> dict[str, Any]:
    """The part of a report that names its ledger."""
    file = path
    if path.is_dir():
        file = next((path / name for name in REPORTS if (path / name).exists()), path / REPORTS[0])
    try:
        named = parsed(file.read_bytes())["ledger"]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"reports must be of results with a ledger, got {file}: {error}"
        ) from error
    if not isinstance(named, dict):
        raise ValueError(f"reports must be of results with a ledger, got {named!r} in {file}")
    return named
