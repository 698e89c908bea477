"""Privacy spent on private rows: every sum over them is reserved here before its noise.

One ledger is kept next to one set of private rows, and **all that is in it adds up**, except for
parts of one split (see `state.Total`): a set that was embedded again, cut or copied holds the same
people, whatever its hash. What is reserved counts as spent from then on: a crash between here and
the result loses an allowance, never an entry. Only who knows that no noise was drawn gives it back.

A copy of a ledger counts nothing while its original is there: two that both went on would each miss
what the other one counts. Where two have gone on all the same, `merge` makes one of them.

A ledger sees only what is written to it. It does not know of copies of the rows without it, or on
other machines, of commands run with `--ledger none`, of simulations that say so, or of its own end
being cut off.

**The file** is a store of lines, whose running hash names the whole ledger. A line is JSON that
names the line before it by its hash:

    {"body": {...}, "kind": "reserve", "time": "...", "previous": <64 hex>, "salt": <32 hex>,
     "place": "/..."}

Its own hash is SHA-256 of the text without the closing brace. Reports name it, and a line says
which rows were used, so every line has a salt from the operating system that never leaves the
ledger: without it nobody can try which rows give the hash. It also says where the ledger lay, so
that a copy knows its original. Lines that version 0.1 wrote have neither.

A chain cannot tell that lines are missing at its end, nor that all of it was made again: there is
no key, and none would be safe from whoever can write the file. Compare `head` with what was printed
or reported before.
"""

import fcntl
import json
import os
import secrets
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pretrain.cli.waiting import lock
from train_distributed.ledger.entry import PARTS, TOLERANCE, Entry, Kind, Limit, to_words
from train_distributed.ledger.state import (
    GENESIS,
    GIVE_BACK,
    LIMIT,
    MERGED,
    RESERVE,
    SPEND,
    LedgerLine,
    LedgerState,
    Total,
    line_hash,
)
from train_distributed.privacy.promise import Unit
from train_distributed.store.store import APPLICATION, NotADatabase, Store, application_of

__all__ = ["Entry", "Ledger", "Limit"]

NONE = "none"  # what `--ledger` is given to keep none, and what a report then says
SUFFIX = ".ledger"
HINT = "; --ledger names another place"
SALT_BYTES = 16
TEXT = b'{"body": '  # how a ledger of version 0.1 begins, a file of text
Append = Callable[[str, dict[str, Any]], LedgerLine]  # (kind, body) -> the line


class Ledger:
    """A ledger by the path of its file, which need not exist yet.

    Examples:
        >>> import tempfile
        >>> from pathlib import Path
        >>> ledger = Ledger.open(Path(tempfile.mkdtemp()) / "rows.ledger")
        >>> entry = Entry(
        ...     kind="release", data="rows", method="softmax", noise="discrete",
        ...     unit="record", epsilon=1.0, delta=1e-5, sigma=3.7307, sensitivity=1.0,
        ... )
        >>> ledger.spend(ledger.reserve(entry))
        >>> f"{ledger.total().epsilon(1e-5):.3f}"
        '1.000'
        >>> id = ledger.reserve(entry)  # counts even if nothing is released
        >>> f"{ledger.total().epsilon(1e-5):.3f}"
        '1.465'
    """

    def __init__(self, path: Path, *near: Path) -> None:
        self.path = path
        self._near = {path.resolve().parent, *near}  # where other ledgers of these rows may lie

    @classmethod
    def open(cls, path: Path, *near: Path) -> "Ledger":
        """The ledger in this file; no other one in its directory, or those `near`, has its rows.

        Raises:
            ValueError: its chain is broken, it is no ledger, or it has another suffix.
        """
        ledger = cls(Path(path), *near)
        if not ledger.path.resolve().parent.is_dir():
            raise ValueError(f"ledger must be in a folder that exists, got {path}")
        ledger.state()
        if not ledger.path.name.endswith(SUFFIX):  # by which others beside it find it
            raise ValueError(f"ledger must be called NAME{SUFFIX}, got {path}")
        return ledger

    @classmethod
    def beside(cls, embeddings: Path) -> "Ledger":
        """Ledger of an embedding set: `NAME.ledger` next to its directory, which it outlives."""
        place = Path(embeddings).resolve()
        return cls.open(place.with_name(place.name + SUFFIX))

    @classmethod
    def chosen(cls, given: Path | None, embeddings: Path) -> "Ledger | None":
        """Ledger that an option `--ledger` names: a file, "none", or left out: next to the set.

        Raises:
            ValueError: as `open`, or it is a copy whose original counts.
        """
        if str(given) == NONE:
            return None
        near = Path(embeddings).resolve().parent
        found = cls.beside(embeddings) if given is None else cls.open(given, near)
        found.refuse_copy(found.state())
        return found

    def state(self) -> LedgerState:
        """State after all lines; raises as `lines`."""
        return self._read(self.lines())

    def lines(self) -> list[LedgerLine]:
        """All lines, verified; none where there is no file.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger of this version.
            OSError: it cannot be read.
        """
        if not self.path.exists():
            return []
        with self._store() as store:
            return self._verified([row.content for row in store.scan()], GENESIS)

    def total(self, unit: Unit = "record") -> Total:
        """Cost of all entries, reserved and spent alike."""
        return self.state().total(unit)

    def reserve(self, entry: Entry, *at_most: Limit) -> str:
        """Counts an entry as spent; its noise may be drawn once this has returned.

        Args:
            entry: with a `reference` that is in the ledger already, nothing is added.
            at_most: limits besides the ledger's own.

        Returns:
            The entry's id.

        Raises:
            ValueError: a limit would be passed, the reference is another entry's, or the part is
                none of `PARTS`; nothing is reserved.
            OSError: the ledger cannot be written: no noise may be drawn.
        """
        if entry.part not in PARTS:
            raise ValueError(f"part must be one of {PARTS}, got {entry.part!r}")
        with locked_directories(self._near):
            self._refuse_elsewhere(entry)
            if not self.path.exists():  # nothing is left behind where it is refused
                self._afford(self._read([]), entry, at_most)
            with self._writing() as (lines, append):
                return self._reserved(self._read(lines), append, entry, at_most)

    def afford(self, entry: Entry) -> None:
        """Raises as `reserve` would now, before long work; writes nothing."""
        with locked_directories(self._near):
            self._refuse_elsewhere(entry)
        self._afford(self.state(), entry, ())

    def _reserved(
        self, state: LedgerState, append: Append, entry: Entry, at_most: Iterable[Limit]
    ) -> str:
        """Id of the entry, which is appended unless its reference is there already."""
        for record in state.records:
            if entry.reference and record.entry.reference == entry.reference:
                if not record.entry.same_sum(entry):
                    raise ValueError(f"reference {entry.reference} must be of the same entry")
                return record.id
        self._afford(state, entry, at_most)
        return append(RESERVE, {"entry": to_words(entry)}).id

    def spend(self, id: str) -> None:
        """Notes that the result of a reserved entry was written; it costs what it cost before.

        Raises:
            ValueError: nothing is reserved under this id, or it was spent before.
        """
        self.state().record(id)
        with self._writing() as (lines, append):
            if self._read(lines).record(id).spent:
                raise ValueError(f"id must be of an entry that is not spent yet, got {id!r}")
            append(SPEND, {"id": id})

    def give_back(self, id: str) -> None:
        """Counts a reserved entry no more: no noise was drawn for it, and none will be.

        Raises:
            ValueError: nothing is reserved under this id, or its result was written.
        """
        with self._locked() as (lines, append):
            if self._read(lines).record(id).spent:
                raise ValueError(f"id must be of an entry that is not spent, got {id!r}")
            append(GIVE_BACK, {"id": id})

    def limit(self, limit: Limit, *, raised: bool = False) -> None:
        """Sets what all entries may come to, which may be less than is spent; no more is reserved.

        Only a limit that is `raised` may allow more than the one before; the ledger keeps that.

        Raises:
            ValueError: it allows more, and `raised` is off.
        """
        with self._writing() as (lines, append):
            before = self._read(lines).limit
            looser = before is not None and not limit.within(before)
            if before is not None and looser and not raised:
                raise ValueError(
                    f"limit must not allow more than epsilon {before.epsilon:g} at delta "
                    f"{before.delta:g} for one {before.unit} (or pass --raise-limit), got "
                    f"{limit.epsilon:g} at {limit.delta:g} for one {limit.unit}"
                )
            append(LIMIT, {"limit": to_words(limit), "raised": looser})

    def merge(self, other: "Ledger") -> int:
        """Counts what another ledger counts and this one does not; the other one counts no more.

        Limits do not matter: it has been spent. The other ledger's own limit is not taken over.

        Returns:
            Number of entries that were added.

        Raises:
            ValueError: it is the same file, or this one is a copy whose original counts.
        """
        state = other.state()
        if not other.path.exists() or other.path.resolve() == self.path.resolve():
            raise ValueError(f"other must be another ledger that exists, got {other.path}")
        with locked_directories(self._near | other._near), self._writing() as (lines, append):
            held = self._read(lines).origins
            missing = [record for record in state.records if record.origin not in held]
            for each in missing:
                append(RESERVE, {"entry": to_words(each.entry), "origin": each.origin})
            if not state.merged:
                with other._locked() as (_, note):
                    note(MERGED, {"into": os.fspath(self.path.resolve())})
        return len(missing)

    def counted_in(self, state: LedgerState) -> str:
        """Path of the ledger that counts what this one holds, a copy; empty where it is itself.

        A copy names the place where its original was written; one that was moved finds nothing
        there, or a ledger of other rows.
        """
        place = state.merged or state.place
        return place if place and (state.merged or self._is_copy_of(Path(place), state)) else ""

    def refuse_copy(self, state: LedgerState) -> None:
        """Refuses a ledger whose entries another one counts, which would miss its own.

        Raises:
            ValueError: naming the ledger to take.
        """
        if place := self.counted_in(state):
            raise ValueError(
                f"ledger must be {place}, which counts for all copies, got its copy {self.path}: "
                f"--ledger {shlex.quote(place)}"
            )

    def release_kind(self, data: str) -> Kind:
        """Kind of the next release of a set: a re-release where the ledger holds one already."""
        kinds = {r.entry.kind for r in self.state().records if r.entry.data == data}
        return "re-release" if kinds & {"release", "re-release"} else "release"

    def report(self, id: str) -> dict[str, Any]:
        """Part of a result's report that names its entry, so that a lost entry is noticed."""
        state = self.state()
        record = state.record(id)
        total = state.total(record.entry.unit)
        return {
            "file": self.path.name,
            "entry": id,
            "length": state.length,
            "head": state.head,
            "epsilon_total": "not private" if (e := total.epsilon()) == float("inf") else e,
            "delta_total": total.least_delta,
            "unit": total.unit,
        }

    def check_against(self, report: dict[str, Any]) -> None:
        """Looks whether this ledger still holds what it gave as the `report` of a result.

        Raises:
            ValueError: lines are missing since, or it is another ledger's.
        """
        length, head = report.get("length"), report.get("head")
        lines = self.lines()
        if not (isinstance(length, int) and 0 < length <= len(lines)) or (
            lines[length - 1].hash != head
        ):
            raise ValueError(
                f"ledger {self.path} must hold the {length} lines that a report has seen, "
                f"up to hash {head}, got {len(lines)} lines without it"
            )

    def _read(self, lines: list[LedgerLine]) -> LedgerState:
        return LedgerState.read(lines, str(self.path))

    def _afford(self, state: LedgerState, entry: Entry, at_most: Iterable[Limit]) -> None:
        spent = [record.entry for record in state.records]
        limits = [*at_most] if state.limit is None else [state.limit, *at_most]
        for limit in limits:
            delta = limit.delta * (1 + TOLERANCE)
            before = Total.of(spent, limit.unit).epsilon(delta)
            after = Total.of([*spent, entry], limit.unit).epsilon(delta)
            if after > limit.epsilon * (1 + TOLERANCE):
                raise ValueError(
                    f"limit of ledger {self.path.name} must be >= {after:g}, got "
                    f"{limit.epsilon:g}: epsilon at delta {limit.delta:g} for one {limit.unit}, of "
                    f"which {before:g} is spent"
                )

    @contextmanager
    def _writing(self) -> Iterator[tuple[list[LedgerLine], Append]]:
        """Locks the file of a ledger that is no copy; yields its lines and how to append one."""
        self.refuse_copy(self.state())
        with self._locked() as (lines, append):
            yield lines, append

    def _is_copy_of(self, place: Path, state: LedgerState) -> bool:
        try:
            elsewhere = place.is_file() and not os.path.samefile(place, self.path)
            return elsewhere and is_ledger(place) and Ledger(place).state().first == state.first
        except OSError:  # what nobody here can read is not there
            return False

    def _refuse_elsewhere(self, entry: Entry) -> None:
        """Refuses rows, or images, that another ledger of the folder counts, and this one not."""
        own, ours = self.path.resolve(), self.state().origins
        for path in sorted(p for near in self._near for p in near.glob(f"*{SUFFIX}")):
            if path.resolve() == own or not is_ledger(path):
                continue
            other = Ledger(path).state()
            counted = (record.entry for record in other.records)
            if other.origins <= ours or not any(map(entry.same_rows, counted)):
                continue
            if ours <= other.origins:
                raise ValueError(
                    f"ledger must be {path}, which counts these rows already, got {self.path}: "
                    f"--ledger {shlex.quote(str(path))}"
                )
            raise ValueError(
                f"ledger must count all of these rows, got {self.path} without what {path} counts: "
                f"blind-averaging ledger merge --ledger {shlex.quote(str(self.path))} "
                f"--other {shlex.quote(str(path))}"
            )

    @contextmanager
    def _locked(self) -> Iterator[tuple[list[LedgerLine], Append]]:
        """All lines, and how the only writer adds one; it is on the disk when the block ends.

        Raises:
            ValueError: a line was altered or removed, or it is no ledger of this version.
            OSError: it cannot be read or written, and nothing was added.
        """
        with self._store() as store, store.transaction() as rows:
            lines = self._verified([row.content for row in rows], GENESIS)

            def append(kind: str, body: dict[str, Any]) -> LedgerLine:
                previous = lines[-1].hash if lines else GENESIS
                content = self._text(kind, body, previous)
                store.append(content)
                lines.extend(self._verified([content], previous))
                return lines[-1]

            yield lines, append

    @contextmanager
    def _store(self) -> Iterator[Store]:
        if self.path.exists() and not self.path.is_file():
            raise ValueError(f"ledger must be a file, got {self.path}")
        try:
            with Store(self.path, "ledger", seal=line_hash, hint=HINT) as store:
                yield store
        except NotADatabase as error:
            if not _is_text(self.path):
                raise self._broken(1) from error
            raise ValueError(
                f"ledger must be of version 0.2 or later, got one of version 0.1: {self.path} "
                "(write to it with version 0.2 first, such as by `ledger limit`: all its lines are "
                "carried over)"
            ) from error

    def _text(self, kind: str, body: dict[str, Any], previous: str) -> bytes:
        """A line that follows the one of this hash, at this moment."""
        stated = {
            "body": body,
            "kind": kind,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "previous": previous,
            "salt": secrets.token_hex(SALT_BYTES),
            "place": os.fspath(self.path.resolve()),
        }
        return json.dumps(stated, allow_nan=False).encode()

    def _verified(self, contents: Iterable[bytes], previous: str) -> list[LedgerLine]:
        """Lines, oldest first, from the one that follows `previous` on; raises as `lines`."""
        lines: list[LedgerLine] = []
        for content in contents:
            line = LedgerLine.read(content, lines[-1].hash if lines else previous)
            if line is None:
                raise self._broken(len(lines) + 1)
            lines.append(line)
        return lines

    def _broken(self, number: int) -> ValueError:
        return ValueError(
            f"ledger must be an unbroken chain of lines, line {number} is altered or does not "
            f"follow from the one before it: {self.path}"
        )


@contextmanager
def locked_directories(directories: Iterable[Path]) -> Iterator[None]:
    """Holds a lock on each of the directories that exist, until the block ends.

    Whoever looks whether a directory holds another ledger of the same rows, and then opens one, is
    alone with it meanwhile. Locks are taken in one order, so that no two wait for each other.

    Raises:
        OSError: a directory cannot be locked.
    """
    with ExitStack() as stack:
        for directory in sorted({place.resolve() for place in directories if place.is_dir()}):
            try:
                opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
                stack.callback(os.close, opened)
                lock(opened, fcntl.LOCK_EX, f"the ledgers in {directory} in use")
            except OSError as error:
                words = f"ledger cannot be written: {error.strerror}{HINT}"
                raise OSError(error.errno, words, str(directory)) from error
        yield


def is_ledger(path: Path) -> bool:
    """Whether a file begins as a ledger does, of any version; other programs use the name too."""
    if not path.is_file():
        return False
    application = application_of(path)
    return _is_text(path) if application is None else application == APPLICATION


def _is_text(path: Path) -> bool:
    """Whether a file that is not SQLite's is a ledger of version 0.1."""
    with path.open("rb") as file:
        return file.read(len(TEXT)) == TEXT
